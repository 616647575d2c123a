"""Handling of SIGINT (Ctrl-C) and SIGTERM: the process ends with one line, no trace, and exit code 128 + the signal.

Outside of training a signal raises `Stopped` in the main thread. A training, or a process that waits for others, defers
the signal to a point of its own choice. A thread supervises both, since the main thread may be inside a library for
minutes, and since libraries swallow exceptions. Programs call `handle_signals` before all other imports, so this module
imports nothing but the standard library.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import select
from typing import Any

from dml.ops.process.child_processes import PASSED_ON, is_started_by_dml, pass_on, signal_process, started_processes
from dml.ops.process.process_end import end_at_once, write_line
from dml.ops.process.signal_state import POLL
from dml.ops.process.signal_state import Stopped as Stopped
from dml.ops.process.signal_state import state as state

THREAD = "signals"
"""The name of the supervising thread."""

_lock = threading.RLock()
_pipe: tuple[int, int] | None = None  # the C code of Python's signal handling writes each signal's number to it
_previous: dict[int, Any] = {}
_previous_hook: Any = None


def handle_signals(*, is_importing: bool = False, is_silent: bool = False) -> None:
    """End this process, from now on, with one line at SIGINT and SIGTERM, and at SIGUSR1 under Slurm.

    Args:
        is_importing: whether there is nothing to clean up yet, so that a signal ends the process at once instead of
            raising an exception; `start_raising` ends this.
        is_silent: whether another process tells the user.
    """
    global _pipe, _previous_hook
    if _pipe is not None or threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        return
    state.__init__()  # type: ignore[misc]
    state.wake = _wake
    state.is_importing, state.is_subordinate = is_importing, is_started_by_dml()
    state.is_silent = is_silent or state.is_subordinate
    _pipe = os.pipe()
    for end in _pipe:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
    # Slurm warns a job by SIGUSR1 if --signal says so, which would kill a process that doesn't handle it.
    slurm_signals = [signal.SIGUSR1] if "SLURM_JOB_ID" in os.environ else []
    for signum in (signal.SIGINT, signal.SIGTERM, PASSED_ON, *slurm_signals):
        _previous[signum] = signal.signal(signum, _handle)
    _previous_hook, sys.unraisablehook = sys.unraisablehook, _hide_stopped
    threading.Thread(target=_supervise, args=_pipe, daemon=True, name=THREAD).start()


@contextmanager
def handling() -> Iterator[None]:
    """Handle signals in the ``with`` body, and restore the previous handling after it.

    Nothing is restored if `handle_signals` was called before.
    """
    is_outermost = _pipe is None
    handle_signals()
    start_raising()
    try:
        yield
    finally:
        if is_outermost:
            _restore()


def start_raising() -> None:
    """Raise an exception at a signal from now on, instead of ending the process at once, so that it can clean up."""
    state.is_importing = False


def defer(notice: str, receive: Callable[[int], None]) -> None:
    """Raise nothing at a first signal: the main thread calls `check` where it can stop. A second one stops at once.

    Args:
        notice: message to a user who has waited for a second, such as "stopping after this step".
        receive: function of the signal, which is called in another thread.
    """
    state.deferred, state.notice = receive, notice


def stop_deferring() -> None:
    """Raise `Stopped` at a signal again."""
    state.deferred = None


@contextmanager
def waiting_for_processes(receive: Callable[[int], None] = pass_on) -> Iterator[None]:
    """Pass a signal on to the processes that this one has started, wait for their end, and then raise `Stopped`."""
    defer("stopping the runs under way after their steps", receive)
    try:
        yield
    finally:
        stop_deferring()
    check()


def check() -> None:
    """Raise `Stopped` if a signal has arrived."""
    if state.signum is not None:
        raise state.exception(state.signum)


def _handle(signum: int, _frame: Any) -> None:
    _receive()
    _wake()  # this thread may have taken a number from the pipe for which the supervising thread waits
    if state.signum is None:  # another library has replaced the pipe
        state.receive(signal.SIGTERM if signum == PASSED_ON else signum)
    if state.is_caught:
        if state.is_repeated:
            os._exit(state.code)
    elif state.is_importing:
        end_at_once()
    elif not state.is_deferred and not state.is_raised:
        assert state.signum is not None
        raise state.exception(state.signum)


def _receive() -> None:
    """Record the signals whose numbers are in the pipe."""
    with _lock:
        if _pipe is None:
            return
        try:
            numbers = os.read(_pipe[0], 4096)
        except BlockingIOError:  # the other thread has read the numbers
            return
        for number in numbers:
            if number == PASSED_ON and state.signum is None:
                state.receive(signal.SIGTERM)
                state.release()
            elif number != PASSED_ON and number in _previous:
                state.receive(number)
                _pass_to_parent()


def _pass_to_parent() -> None:
    """Pass a signal on to the process that started this one; it tells the user, and may wait for this one."""
    state.release()
    if state.is_subordinate:
        # A terminal's Ctrl-C reaches the parent too; as another signal it would count as a second one.
        signal_process(os.getppid(), signal.SIGINT if state.signum == signal.SIGINT else PASSED_ON)


def _supervise(reader: int, _: int) -> None:
    """Make sure that a signal ends the process, whatever the main thread does."""
    done: set[str] = set()
    while _pipe is not None and _pipe[0] == reader:
        # Before a signal, wait for it; after it, look at the state again and again.
        select([reader], [], [], None if state.signum is None else POLL)
        _receive()
        if state.signum is None or state.is_caught:
            continue
        if state.is_importing:
            end_at_once()
        _announce(done)
        if state.is_deferred:
            if state.deferred is not None and "passed on" not in done:
                done.add("passed on")
                state.deferred(state.signum)
        elif state.is_swallowed:
            state.raise_again()
        elif state.is_overdue:
            end_at_once()


def _announce(done: set[str]) -> None:
    """Tell a user who has waited for a second that the process is stopping."""
    if state.is_notice_due and "announced" not in done:
        done.add("announced")
        if not state.is_silent:
            write_line(f"{state.notice if state.is_deferred else 'stopping'}; Ctrl-C again stops at once\n")


def _wake() -> None:
    if _pipe is not None:
        os.write(_pipe[1], b"\0")


def _hide_stopped(unraisable: Any) -> None:
    """Print no trace if Python ignores the exception, as in ``__del__``; the supervising thread raises it again."""
    if unraisable.exc_type is not Stopped:
        _previous_hook(unraisable)


def _restore() -> None:
    """End the handling of signals and the supervising thread."""
    global _pipe
    if _pipe is None:
        return
    signal.set_wakeup_fd(-1)
    for signum, handler in _previous.items():
        signal.signal(signum, handler)
    _previous.clear()
    sys.unraisablehook = _previous_hook
    pipe, _pipe = _pipe, None
    os.write(pipe[1], b"\0")  # wakes the supervising thread, which then ends
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()
    for end in pipe:
        os.close(end)
    state.__init__()  # type: ignore[misc]


_masks: list[set[Any]] = []
"""The signal masks to restore after each fork that is under way."""


def _block() -> None:
    if _pipe is not None:
        _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, list(_previous)))


def _unblock() -> None:
    if _masks:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _reset_in_child() -> None:
    """Make a forked child, such as a loader's worker, ignore Ctrl-C, which its parent handles, and die by SIGTERM."""
    global _pipe, _lock
    _lock = threading.RLock()  # the parent's other thread may have held the lock at the fork
    if _pipe is not None:
        signal.set_wakeup_fd(-1)
        for signum in _previous:
            signal.signal(signum, signal.SIG_IGN if signum == signal.SIGINT else signal.SIG_DFL)
        for end in _pipe:
            os.close(end)
        _pipe = None
        _previous.clear()
        started_processes.clear()
        state.__init__()  # type: ignore[misc]
    _unblock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_reset_in_child)
