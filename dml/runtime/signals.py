"""Handling of SIGINT (Ctrl-C) and SIGTERM: the process ends with one line, no trace, and exit code 128 + the signal.

Outside of training a signal raises `Stopped` in the main thread. A training, or a process that waits for others, defers
it to a point of its own choice. A second signal ends the process at once. Programs call `handle_signals` before all
other imports, which take seconds, so this module imports nothing but the standard library.
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

SAME_SIGNAL = 1.0
"""Seconds within which signals count as one: terminals, launchers and `timeout` signal a process and then its group."""
ANNOUNCED_AFTER = 1.0
"""Seconds after which a process that is still running tells the user that it is stopping."""
SILENT = "DML_SILENT"
"""The environment variable of a process that leaves it to the one that started it to tell the user about a signal."""

before_end: list[Callable[[], None]] = []
"""Functions that clean up before a process ends at once."""


class Stopped(SystemExit):
    """The exception for a signal; neither ``except Exception`` nor Lightning's handling of Ctrl-C catches it."""


def _is_silent() -> bool:
    return SILENT in os.environ or ("TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") != "0")


@dataclass
class SignalState:
    """The signals that this process has received, and what it tells the user about them.

    Attributes:
        signum: number of the first signal; None before it.
        received_at: time of the last signal, by `monotonic`.
        was_raised: whether `Stopped` was raised: an error that comes after it is one of a library's cleanup.
        is_reported: whether the user was told that the process has stopped.
        is_importing: whether there is nothing to clean up yet, so that a signal ends the process at once.
        is_silent: whether another process tells the user.
        notice: message to a user who has waited for a second; it isn't empty while signals are deferred.
        pass_on: function that a deferred signal calls.
        hint: function that returns how the work can be continued; an empty string for no hint.
        position: step at which a training stopped, such as "at step 3 of 400".
        checkpoint_note: a sentence about the last checkpoint, for a training that stops at once.
    """

    signum: int | None = None
    received_at: float = 0.0
    was_raised: bool = False
    is_reported: bool = False
    is_importing: bool = True
    is_silent: bool = field(default_factory=_is_silent)
    notice: str = ""
    pass_on: Callable[[], None] | None = None
    hint: Callable[[], str] = str
    position: str = ""
    checkpoint_note: str = ""

    @property
    def code(self) -> int:
        """The exit code."""
        return 128 + (self.signum or signal.SIGTERM)

    def format_line(self) -> str:
        """Format the line that tells the user by what signal and where the process stopped, and how to continue."""
        name = signal.Signals(self.signum or signal.SIGTERM).name
        if self.position:
            event = f"stopped {self.position} by {name}"
        elif self.checkpoint_note:
            event = f"stopped at once by {name}; {self.checkpoint_note}"
        else:
            event = f"stopped by {name}"
        hint = self.hint()
        return f"{event}; {hint}\n" if hint else f"{event}\n"


state = SignalState()
"""The state of this process."""
_process: int | None = None
"""The id of the process whose signals are handled: a forked child, such as a loader's worker, handles none."""
_previous: dict[int, Any] = {}
_previous_hook: Any = sys.unraisablehook


def handle_signals() -> None:
    """End this process, from now on, with one line at SIGINT and SIGTERM, and at SIGUSR1 under Slurm.

    Until `start_raising` is called, there is nothing to clean up, and a signal ends the process at once. Every command
    and every worker of a sweep begins with it, so letters that the output can't hold are escaped from here on, too.
    """
    global state, _process, _previous_hook
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a notebook has others, which hold all letters
            stream.reconfigure(errors="backslashreplace")
    is_main_thread = threading.current_thread() is threading.main_thread()
    if _process == os.getpid() or not is_main_thread or sys.platform == "win32":
        return
    state, _process = SignalState(), os.getpid()
    for signum in list_handled():
        _previous[signum] = signal.signal(signum, _receive)
    if sys.unraisablehook is not _end_if_ignored:
        _previous_hook, sys.unraisablehook = sys.unraisablehook, _end_if_ignored


def list_handled() -> list[signal.Signals]:
    """Return the signals that are handled.

    Slurm warns a job by SIGUSR1 if --signal says so, which would kill a process that doesn't handle it.
    """
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if "SLURM_JOB_ID" in os.environ else [])]


def handle_again() -> None:
    """Handle signals again after a library has replaced the handlers."""
    if _process == os.getpid():
        for signum in _previous:
            signal.signal(signum, _receive)


@contextmanager
def handling() -> Iterator[None]:
    """Handle signals in the ``with`` body, and restore the previous handling after it.

    Nothing is restored if `handle_signals` was called before.
    """
    is_outermost = _process != os.getpid()
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


def defer(notice: str, pass_on: Callable[[], None] | None = None) -> None:
    """Raise nothing at a first signal: the main thread calls `check` where it can stop.

    Args:
        notice: message to a user who has waited for a second, such as "stopping after this step".
        pass_on: function that is called at each signal.
    """
    state.notice, state.pass_on = notice, pass_on


def stop_deferring() -> None:
    """Raise `Stopped` at a signal again."""
    state.notice, state.pass_on = "", None


def is_requested() -> bool:
    """Return whether a signal has arrived."""
    return state.signum is not None


def request(signum: int) -> None:
    """Record a signal that another process received, unless this one has received one itself."""
    if state.signum is None:
        state.signum, state.received_at = signum, monotonic()


def check() -> None:
    """Raise `Stopped` if a signal has arrived."""
    if is_requested():
        state.was_raised = True
        raise Stopped(state.code)


def report(start: str = "") -> int:
    """Tell the user that the process has stopped, and return the exit code."""
    if _process == os.getpid():
        signal.setitimer(signal.ITIMER_REAL, 0)
    if not state.is_silent:
        _write(start + state.format_line())
    state.is_reported = True
    return state.code


def end_at_once() -> NoReturn:
    """End this process after a signal without waiting for anything."""
    if not state.is_reported:
        report("\x1b[?25h\n" if sys.stderr.isatty() else "")  # shows the cursor, which a progress bar has hidden
    exit_at_once(state.code)


def exit_at_once(code: int) -> NoReturn:
    """End this process without waiting for anything but the removal of the files that it is writing."""
    for clean_up in before_end:
        clean_up()
    _write("")
    os._exit(code)


def _receive(signum: int, _frame: Any) -> None:
    if os.getpid() != _process:
        return
    is_first = state.signum is None
    is_second = not is_first and monotonic() - state.received_at > SAME_SIGNAL
    request(signum)
    state.received_at = monotonic()
    if (is_first or is_second) and state.pass_on is not None:
        state.pass_on()
    if state.is_importing or is_second:
        end_at_once()
    if is_first:
        signal.signal(signal.SIGALRM, _announce)
        signal.setitimer(signal.ITIMER_REAL, ANNOUNCED_AFTER)
        if not state.notice:
            check()


def _announce(_signum: int, _frame: Any) -> None:
    if not (state.is_silent or state.is_reported):
        _write(f"{state.notice or 'stopping'}; Ctrl-C again stops at once\n")


def _write(line: str) -> None:
    """Write a line to stderr, and what the buffers hold."""
    with suppress(OSError, ValueError):  # the terminal, or the program that read the output, has gone
        sys.stdout.flush()
        sys.stderr.write(line)
        sys.stderr.flush()


def _end_if_ignored(unraisable: Any) -> None:
    """End the process if Python ignores the exception of a signal, as in ``__del__``."""
    if unraisable.exc_type is Stopped:
        end_at_once()
    _previous_hook(unraisable)


def _restore() -> None:
    global state, _process
    for signum, handler in _previous.items():
        signal.signal(signum, handler)
    if is_requested():
        signal.setitimer(signal.ITIMER_REAL, 0)
    if sys.unraisablehook is _end_if_ignored:
        sys.unraisablehook = _previous_hook
    _previous.clear()
    state, _process = SignalState(), None


@contextmanager
def continuing() -> Iterator[None]:
    """Make the line about a signal tell that the same command goes on; it is printed within the ``with`` statement."""
    before = state.hint
    state.hint = lambda: "the same command goes on"
    try:
        yield
    finally:
        state.hint = before
