import os
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from dml.runtime import processes, signals
from dml.runtime.processes import follow_parent, run_process, waiting_for_processes

FORK = get_context("fork")

SLEEPER = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_a_signal_stops_the_started_process_and_then_this_one(tmp_path: Path) -> None:
    def run() -> None:
        with signals.handling(), waiting_for_processes():
            code = run_process([sys.executable, "-c", SLEEPER, str(tmp_path / "ready")])
            (tmp_path / "code").write_text(str(code))

    process = FORK.Process(target=run)
    process.start()
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(30)
    assert process.exitcode == 130
    assert (tmp_path / "code").read_text() == str(int(signal.SIGTERM))


def test_a_signal_that_came_too_early_stops_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.multiprocessing, "active_children", list)  # other tests may keep workers

    def run() -> None:
        with waiting_for_processes():
            os.kill(os.getpid(), signal.SIGTERM)
            assert run_process([sys.executable, "-c", "import time; time.sleep(60)"]) == -signal.SIGTERM

    with signals.handling(), pytest.raises(signals.Stopped):
        run()


def _work(ready: Event) -> None:
    follow_parent()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    ready.set()
    time.sleep(60)


def test_a_worker_ends_with_its_parent_alone() -> None:
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
