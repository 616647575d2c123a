"""A lock on a file that one process holds until it ends, however it ends."""

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from weakref import WeakSet

INHERITED = "DML_INHERITED_LOCK"
"""The environment variable that names the file descriptor of a lock which the parent process passed on."""
GRACE_PERIOD = 0.5
"""Seconds to wait for a lock that another process only tests with `is_held`, or whose holder is just ending."""


class FileLock:
    """An exclusive lock (``flock``) on a file; the kernel frees it when its holder ends.

    A forked child, such as a loader's worker, doesn't hold it: otherwise a killed process's lock would live as long as
    its workers. A program started with `descriptor` and `environment` holds it together with this process.

    On Windows, and on file systems that have no such locks, every process gets the lock.

    Args:
        path: path of the file, which is created if it is missing. Only a process that holds the lock may delete it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    @property
    def descriptor(self) -> int:
        """The file descriptor of the held lock, for `subprocess.run(..., pass_fds=[...])`."""
        assert self._file is not None
        return self._file.fileno()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variable that makes a started program use the lock that this process holds."""
        return {INHERITED: str(self.descriptor)}

    @contextmanager
    def hold(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the lock in the body of the ``with`` statement.

        Args:
            wait: whether to wait until another process that holds the lock ends, instead of raising an exception.

        Raises:
            BlockingIOError: if another process holds the lock; ``strerror`` names the process.
        """
        if self._is_inherited():
            yield
            return
        self._file = self.path.open("a+")
        _held.add(self)
        try:
            self._acquire(wait)
            yield
        finally:
            self.close()

    def is_held(self) -> bool:
        """Tell whether a process holds the lock, this one or another."""
        if self._file is not None:
            return True
        if not self.path.exists():
            return False
        with self.path.open() as file:
            return not _flock(file, exclusive=False)

    def close(self) -> None:
        """Release the lock in this process."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _acquire(self, wait: bool) -> None:
        assert self._file is not None
        deadline = time.monotonic() + GRACE_PERIOD
        while not self._lock_file():
            if not wait and time.monotonic() > deadline:
                self._file.seek(0)
                raise BlockingIOError(errno.EWOULDBLOCK, self._file.read().strip() or "another process")
            time.sleep(0.02)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def _lock_file(self) -> bool:
        """Lock the file without waiting, and return whether it is locked; one that its holder deleted is made anew."""
        assert self._file is not None
        if not _flock(self._file, exclusive=True):
            return False
        if self.path.exists() and os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
            return True
        self._file.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+")
        return False

    def _is_inherited(self) -> bool:
        try:
            return os.path.samestat(os.fstat(int(os.environ[INHERITED])), self.path.stat())
        except (KeyError, OSError):
            return False


@contextmanager
def replacing_alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in the body of such a ``with`` statement for ``path``, which the body replaces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")).hold(wait=True):
        yield


_held: WeakSet[FileLock] = WeakSet()
"""The locks that this process holds, or has held."""


def _release_in_child() -> None:
    for lock in _held:
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def _flock(file: IO[str], *, exclusive: bool) -> bool:
    """Lock an open file without waiting; return whether the file is locked now, or its file system has no locks."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
    return True
