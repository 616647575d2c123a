"""A lock on a file that one process holds until it ends, however it ends."""

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from dml.runtime.errors import InputError

AT_WORK = "is at work on it; wait for it"
"""The usual end of the error line, behind the name of the process that holds the lock."""
GRACE_PERIOD = 0.5
"""Seconds to wait for a lock that another process only tests with `is_held`, or whose holder is just ending."""
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems that have no locks, as some networks' have none; there every process gets the lock."""


@contextmanager
def holding(path: Path, *, name: object = None, does: str = AT_WORK, wait: bool = False) -> Iterator[None]:
    """Hold the lock on a file in the body of the ``with`` statement.

    The kernel frees it when the process ends. A forked child, such as a loader's worker, doesn't hold it.

    Args:
        path: path of the file, which is created if it is missing. Only a process that holds the lock may delete it.
        name: beginning of the error line, such as the folder that is locked; None for the path.
        does: end of the error line, behind the name of the other process.
        wait: whether to wait until another process that holds the lock ends, instead of raising an exception.

    Raises:
        InputError: if another process holds the lock.
    """
    lock = filelock.FileLock(path, timeout=-1 if wait else GRACE_PERIOD, poll_interval=0.02, fallback_to_soft=False)
    try:
        _acquire(lock, path, name or path, does)
        yield
    finally:
        lock.release()


def busy_error(path: Path, name: object, does: str = AT_WORK) -> InputError:
    """Return the error that another process, which holds the lock on a file, does something with what has a name."""
    return InputError(f"{name}: {path.read_text().strip() or 'another process'} {does}")


def is_held(path: Path) -> bool:
    """Tell whether a process holds the lock on a file, this one or another."""
    if not path.exists():
        return False
    with path.open() as file:
        for _ in range(3):  # another process may be testing it
            try:
                if filelock.lock_descriptor(file.fileno(), blocking=False):
                    return False
            except OSError as error:
                if error.errno not in WITHOUT_LOCKS:
                    raise
                return False
            time.sleep(0.01)
    return True


@contextmanager
def replacing_alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in the body of such a ``with`` statement for ``path``, which the body replaces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with holding(path.with_name(f".{path.name}.lock"), wait=True):
        yield


def _acquire(lock: filelock.BaseFileLock, path: Path, name: object, does: str) -> None:
    """Acquire a lock, and write into its file which process holds it."""
    while not lock.is_locked:
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise busy_error(path, name, does) from error
        except FileNotFoundError:  # the holder, for which this process waited, has deleted the folder
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            break
    path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
