import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dml.ops.process.child_processes import (
    STARTED_BY,
    blocking_ctrl_c,
    end_children,
    is_started_by_dml,
    pass_on,
    reporting_signals,
    signal_process,
    started_processes,
)


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A started process that sleeps, and prints the number of the signal SIGUSR2 if it receives it."""
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR2, lambda number, _: sys.exit(print(number, flush=True)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(multiprocessing, "active_children", list)  # other tests may keep workers
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        started_processes.add(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        started_processes.discard(process)
        process.kill()


def test_a_signal_is_passed_on_to_started_processes(sleeper: subprocess.Popen[str]) -> None:
    pass_on(signal.SIGINT)
    output, _ = sleeper.communicate(timeout=30)
    assert output == f"{int(signal.SIGUSR2)}\n"


def test_started_processes_are_killed(sleeper: subprocess.Popen[str]) -> None:
    end_children()
    assert sleeper.wait(timeout=30) == -signal.SIGKILL
    signal_process(sleeper.pid, signal.SIGTERM)  # a process that has ended is no error


def test_a_started_process_knows_who_reports_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STARTED_BY, raising=False)
    script = "from dml.ops.process.child_processes import is_started_by_dml; print(is_started_by_dml())"
    command = [sys.executable, "-c", script]
    with reporting_signals():
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
    assert STARTED_BY not in os.environ
    assert not is_started_by_dml()


def test_started_processes_do_not_receive_ctrl_c() -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('still here')"
    with blocking_ctrl_c():
        finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout == "still here\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
