import os
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from dml.runtime import processes, signals
from dml.runtime.processes import follow_parent, python_environment, start_process, stop_processes

FORK = get_context("fork")

SLEEPER = """
import sys, time
from pathlib import Path
time.sleep(float(sys.argv[2]))
from dml.runtime.signals import handle_signals
handle_signals()
Path(sys.argv[1]).touch()
time.sleep(60)
"""


def start(ready: Path, before: float = 0.0) -> int:
    """Start a program that handles signals after some seconds, and then makes a file -> its exit code."""
    return start_process([sys.executable, "-c", SLEEPER, str(ready), str(before)], env=python_environment()).wait()


def test_a_signal_that_came_too_early_stops_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.multiprocessing, "active_children", list)  # other tests may keep workers

    def run() -> None:
        with signals.deferring("stopping", stop_processes):
            os.kill(os.getpid(), signal.SIGTERM)
            assert start(tmp_path / "ready", before=0.2) == 143

    with pytest.raises(signals.Stopped):
        run()
    assert not (tmp_path / "ready").exists()


def _work(ready: Event) -> None:
    follow_parent()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    ready.set()
    time.sleep(60)


@pytest.mark.distributed
def test_a_worker_ends_with_its_parent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "sleep", lambda _: time.sleep(0.05))
    ready = FORK.Event()
    reader, writer = os.pipe()  # the worker alone keeps it open in the end

    def start_worker() -> None:
        FORK.Process(target=_work, args=(ready,)).start()
        time.sleep(60)

    parent = FORK.Process(target=start_worker)
    parent.start()
    os.close(writer)
    assert ready.wait(20)
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    parent.kill()
    parent.join()
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)
