"""SIGINT (Ctrl-C) and SIGTERM end a program with one line, no trace, and exit code 128 + the signal.

Files are whole at each moment, so the handler itself ends the process. Only what should come to an end of its own, as
the step of a training or the processes that this one waits for, is `deferring`: there a signal sets a flag, and a
second one ends the process. No handler raises an exception: libraries would swallow it while they are imported.
Programs call `handle_signals` before all other imports, so this module imports nothing but the standard library.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from time import monotonic
from typing import Any, NoReturn

GRACE_PERIOD = 1.0
"""Seconds within which signals count as one, as terminals and launchers signal a process and then its group.

A process that is still running after them tells the user that it is stopping.
"""
SILENT = "DML_SILENT"
"""The environment variable of a process that leaves it to the one that started it to tell the user about a signal."""

before_end: list[Callable[[], None]] = []
"""Functions that clean up before a process ends at once."""


class Stopped(SystemExit):
    """The exception of `check`, which neither ``except Exception`` nor Lightning's handling of Ctrl-C catches."""


def _is_silent() -> bool:
    return SILENT in os.environ or ("TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") != "0")


@dataclass
class SignalState:
    """The signals that this process has received, and what it tells the user about them."""

    signum: int | None = None  # of the first signal
    received_at: float = 0.0  # time of the last signal, by `monotonic`
    is_silent: bool = field(default_factory=_is_silent)  # whether another process tells the user, or this one has told
    notice: str = ""  # for a user who has waited for a second; it isn't empty while signals are deferred
    pass_on: Callable[[], None] | None = None  # what a deferred signal calls
    hint: Callable[[], str] = str  # how the work can be continued; an empty string for no hint
    position: str = ""  # where a training has stopped, such as "at step 3 of 400"


state = SignalState()
_process: int | None = None  # whose signals are handled: a forked child, such as a loader's worker, handles none


def list_handled() -> list[signal.Signals]:
    """Return the signals that are handled: under Slurm also SIGUSR1, by which --signal warns a job."""
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if "SLURM_JOB_ID" in os.environ else [])]


def handle_signals() -> None:
    """End this program, from now on, with one line at each of the signals.

    Every command begins with it, so letters that the output can't hold are escaped from here on, too.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a notebook has others, which hold all letters
            stream.reconfigure(errors="backslashreplace")
    if _process != os.getpid():
        forget()
        if _set_handlers():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, list_handled())  # see `processes.blocking_signals`


def handle_again() -> None:
    """Handle signals again after a library has replaced the handlers."""
    if _process == os.getpid():
        _set_handlers()


def _set_handlers() -> dict[signal.Signals, Any]:
    """Handle the signals -> the former handlers; none outside of the main thread and on Windows."""
    global _process
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        return {}
    _process = os.getpid()
    return {signum: signal.signal(signum, _receive) for signum in list_handled()}


@contextmanager
def deferring(notice: str, pass_on: Callable[[], None] | None = None) -> Iterator[None]:
    """Let a first signal set a flag in the ``with`` body, which calls `check` where it can end, as the end of it does.

    Signals are handled here even in a Python session, where Ctrl-C is a KeyboardInterrupt otherwise. ``pass_on`` is
    called at each signal; a user who has waited for a second is shown the notice.
    """
    global _process
    before = _process, state.notice, state.pass_on
    handlers = _set_handlers()
    state.notice, state.pass_on = notice, pass_on
    try:
        yield
    finally:
        if handlers:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in handlers.items():
            signal.signal(signum, handler or signal.SIG_DFL)
        _process, state.notice, state.pass_on = before
    check()


def is_requested() -> bool:
    """Return whether a signal has come."""
    return state.signum is not None


def request(signum: int) -> None:
    """Record a signal that another process received, unless this one has received one itself."""
    if state.signum is None:
        state.signum, state.received_at = signum, monotonic()


def forget() -> None:
    """Begin anew, without the signal that has stopped an earlier training of a Python session."""
    global state
    state = SignalState()


def check(position: str = "") -> None:
    """Raise `Stopped` if a signal has come; the position tells where, such as "at step 3 of 400"."""
    if state.signum is not None:
        state.position = position or state.position
        raise Stopped(128 + state.signum)


def format_line() -> str:
    """Format the line that tells the user by what signal and where the process stopped, and how to continue."""
    name, hint = signal.Signals(state.signum or signal.SIGTERM).name, state.hint()
    event = " ".join(filter(None, ["stopped", state.position, "by", name]))
    return f"{event}; {hint}\n" if hint else f"{event}\n"


def describe_rest() -> str:
    """Describe how a command goes on that an error has ended; empty for one that begins anew."""
    hint = state.hint()
    return f"; what was saved is kept, and {hint}" if hint else ""


def report() -> int:
    """Tell the user once that the process has stopped -> its exit code."""
    if not state.is_silent:
        _write(format_line())
    state.is_silent = True
    return 128 + (state.signum or signal.SIGTERM)


def exit_at_once(code: int) -> NoReturn:
    """End this process without waiting for anything but the removal of the files that it is writing."""
    try:
        for clean_up in before_end:
            clean_up()
        _write("")
    finally:
        os._exit(code)


def _receive(signum: int, _frame: Any) -> None:
    if os.getpid() != _process:
        return
    is_first = state.signum is None
    is_same = not is_first and monotonic() - state.received_at <= GRACE_PERIOD
    request(signum)
    state.received_at = monotonic()
    if is_same:
        return
    if state.pass_on is not None:
        state.pass_on()
    if not (is_first and state.notice):
        if sys.stderr.isatty():
            _write("\x1b[?25h\n")  # shows the cursor, which a progress bar has hidden
        exit_at_once(report())
    signal.signal(signal.SIGALRM, _announce)
    signal.setitimer(signal.ITIMER_REAL, GRACE_PERIOD)


def _announce(_signum: int, _frame: Any) -> None:
    if not state.is_silent:
        _write(f"{state.notice}; Ctrl-C again stops at once\n")


def _write(line: str) -> None:
    """Write a line to stderr, and what the buffers hold."""
    with suppress(OSError, ValueError):  # the terminal, or the program that read the output, has gone
        try:
            sys.stdout.flush()
            sys.stderr.write(line)
            sys.stderr.flush()
        except RuntimeError:  # the signal came while a buffer was being written
            os.write(2, line.encode(errors="backslashreplace"))
