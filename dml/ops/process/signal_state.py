"""The state of a process that has received a signal: which signal it was, and how far the process is in stopping."""

import signal
import threading
from collections.abc import Callable
from mmap import mmap
from time import monotonic
from weakref import ref

SAME_SIGNAL = 0.5
"""Seconds within which signals count as one: launchers and `timeout` signal a process and then its whole group."""
ANNOUNCED_AFTER = 1.0
"""Seconds after which a process that is still running tells the user that it is stopping."""
ENDED_AFTER = 5.0
"""Seconds after which a process is ended whose main thread is still inside a library, where nothing can be raised."""
CLEANED_UP_AFTER = 20.0
"""Seconds that the clean-up after the exception may take."""
POLL = 0.05
"""Seconds between two looks at the state after a signal."""

shared = mmap(-1, 1)
"""1 while this process defers a SIGTERM; its forked children see it as well."""


class Stopped(SystemExit):
    """The exception for a signal; neither ``except Exception`` nor Lightning's handling of Ctrl-C catches it.

    Args:
        signum: number of the signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum

    def __reduce__(self) -> tuple[type["Stopped"], tuple[int]]:
        return Stopped, (self.signum,)


def _do_nothing() -> None:
    pass


class SignalState:
    """The signals that this process has received, and how far it is in stopping.

    Attributes:
        signum: number of the first signal; None before it.
        is_repeated: whether a second signal has arrived, after which the process stops at once.
        position: step at which a training stopped, such as "at step 3 of 400".
        checkpoint_note: a sentence about the last checkpoint, for a training that stops at once.
        hint: function that returns how the work can be continued; an empty string for no hint.
        notice: message to a user who has waited for a second, such as "stopping after this step".
        deferred: function that receives a signal in place of the exception; None if a signal raises the exception.
        wake: function that wakes the supervising thread.
        release: function that is called at a signal and stops threads that would kill this process too early.
        end_peers: function of an exit code and a line that ends all processes of the job; None outside of a job.
        is_importing: whether nothing has to be cleaned up yet, so that a signal ends the process at once.
        is_caught: whether the exception has reached the end of the program.
        is_silent: whether another process tells the user about the signal.
        is_subordinate: whether the process that started this one tells the user, and has to be told first.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.is_repeated = False
        self.position = self.checkpoint_note = ""
        self.hint: Callable[[], str] = str
        self.wake: Callable[[], None] = _do_nothing
        self.release: Callable[[], None] = _do_nothing
        self.end_peers: Callable[[int, str], None] | None = None
        self.is_importing = self.is_caught = self.is_silent = self.is_subordinate = False
        self.deferred: Callable[[int], None] | None = None
        self.notice = ""
        self._exception: ref[Stopped] | None = None
        self._received_at = self._requested_at = self._raised_at = 0.0

    def receive(self, signum: int) -> None:
        """Record a signal; one that follows another closely doesn't count as a second one."""
        now = monotonic()
        if self.signum is None:
            self.signum, self._requested_at = signum, now
        elif now - self._received_at > SAME_SIGNAL and not self.is_repeated:
            self.is_repeated, self._requested_at = True, now
        self._received_at = now
        shared[0] = int(signum == signal.SIGTERM and self.is_deferred)

    def receive_from_peer(self, signum: int) -> None:
        """Record the signal of another process of the job, unless this process has received one itself."""
        if self.signum is None:
            self.receive(signum)
            self.wake()

    def raise_again(self) -> None:
        """Raise the exception in the main thread once more; this doesn't count as a second signal."""
        self._received_at = monotonic()
        signal.pthread_kill(threading.main_thread().ident or 0, self.signum or signal.SIGTERM)

    def exception(self, signum: int) -> Stopped:
        """Return the exception to raise for a signal, and remember when it was raised."""
        self.receive_from_peer(signum)
        assert self.signum is not None
        stopped = Stopped(self.signum)
        shared[0] = 0
        self._exception, self._raised_at = ref(stopped), monotonic()
        return stopped

    def finish(self) -> tuple[int, str]:
        """Record that the exception has reached the end of the program; return the exit code, and the line to print."""
        self.is_caught = True
        return self.code, self.line()

    @property
    def is_deferred(self) -> bool:
        """Whether the main thread raises `Stopped` itself, at a point of its own choice."""
        return self.deferred is not None and not self.is_repeated

    @property
    def is_raised(self) -> bool:
        """Whether the exception has been raised and still exists."""
        return self._exception is not None and self._exception() is not None

    @property
    def was_raised(self) -> bool:
        """Whether the exception has been raised: an error that comes after it is one of a library's cleanup."""
        return self._raised_at > 0

    @property
    def is_swallowed(self) -> bool:
        """Whether the exception was raised, and a library has caught it, so that it didn't end the program."""
        return self._exception is not None and self._exception() is None and not self.is_caught

    @property
    def is_overdue(self) -> bool:
        """Whether the main thread has used up the time in which it should have ended."""
        if self.is_raised:
            return monotonic() - self._raised_at > (POLL if self._was_requested_again else CLEANED_UP_AFTER)
        grace_period = ENDED_AFTER if self.end_peers is None and not self.is_repeated else ANNOUNCED_AFTER
        return monotonic() - self._requested_at > grace_period

    @property
    def _was_requested_again(self) -> bool:
        """Whether the second signal came after the exception for the first one."""
        return self.is_repeated and self._requested_at > self._raised_at

    @property
    def is_notice_due(self) -> bool:
        """Whether the user has waited long enough to be told that the process is stopping."""
        return monotonic() - self._requested_at > ANNOUNCED_AFTER and not self.is_repeated and not self.is_caught

    def line(self) -> str:
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

    @property
    def code(self) -> int:
        """Return the exit code."""
        return 128 + (self.signum or signal.SIGTERM)


state = SignalState()
"""The state of this process."""
