"""Signals between a process and those that it starts: Ctrl-C and SIGTERM stop all of them, and one tells the user."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

from dml.ops.process.signal_state import shared

PARENT_KNOWS_WITHIN = 2.0
"""Seconds in which a signal to a whole process group reaches the other processes of the group."""
STARTED_BY = "DML_STARTED_BY"
"""The environment variable with the id of the process that reports signals to the user, see `reporting_signals`."""
PASSED_ON = getattr(signal, "SIGUSR2", signal.SIGTERM)
"""The signal by which processes pass on a signal, so that it doesn't count as a second signal of the user."""

started_processes: set[Any] = set()
"""The ``subprocess.Popen`` objects for whose end this process waits."""


@contextmanager
def reporting_signals() -> Iterator[None]:
    """Make this process tell the user about signals, in place of the processes that it starts in the ``with`` body.

    The started processes pass their signals on to this one.
    """
    before = os.environ.get(STARTED_BY)
    os.environ[STARTED_BY] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(STARTED_BY)
        if before is not None:
            os.environ[STARTED_BY] = before


def is_started_by_dml() -> bool:
    """Tell whether the process that started this one reports signals to the user."""
    return os.environ.get(STARTED_BY) == str(os.getppid())


@contextmanager
def blocking_ctrl_c() -> Iterator[None]:
    """Block Ctrl-C for the processes that are started in the ``with`` body.

    A terminal sends Ctrl-C to all processes, and those would print a trace. This process receives it in another thread.
    """
    # Started processes inherit the mask of the thread that starts them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pass_on(_signum: int) -> None:
    """Pass a signal on to the processes that this one has started and waits for."""
    for process in _list_children():
        signal_process(process.pid, PASSED_ON)


def end_children() -> None:
    """Kill the workers of data loaders and other processes that would outlive this one."""
    for process in _list_children():
        signal_process(process.pid, signal.SIGKILL)


def _list_children() -> list[Any]:
    multiprocessing = sys.modules.get("multiprocessing")
    return [*(multiprocessing.active_children() if multiprocessing else ()), *started_processes]


def signal_process(process_id: int, signum: int) -> None:
    """Send a signal to a process, unless it has ended."""
    with suppress(OSError):
        os.kill(process_id, signum)


def survive_group_signals(_worker: int) -> None:
    """Make a data loader's worker ignore a SIGTERM that its parent has received as well and defers.

    A job's end (Slurm, ``timeout``) signals all processes at once, but the training needs the batches of its workers
    until it has finished the step; then it ends them. A SIGTERM to the worker alone ends the worker.
    """

    def end_unless_deferred(signum: int, _frame: Any) -> None:
        deadline = monotonic() + PARENT_KNOWS_WITHIN
        while monotonic() < deadline:
            if shared[0]:
                return
            sleep(0.01)
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    if sys.platform != "win32":
        signal.signal(signal.SIGTERM, end_unless_deferred)
