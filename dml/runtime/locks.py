"""A lock on a file that one process holds until it ends, however it ends."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from dml.runtime.errors import InputError

AT_WORK = "is at work on it; wait for it"
"""The usual end of the error line, behind the name of the process that holds the lock."""
GRACE_PERIOD = 0.5
"""Seconds to wait for a lock whose holder is just ending."""
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
        wait: whether to wait until another process that holds the lock ends, instead of raising an `InputError`.
    """
    lock = filelock.FileLock(path, timeout=-1 if wait else GRACE_PERIOD, poll_interval=0.02, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise InputError(f"{name or path}: {path.read_text().strip() or 'another process'} {does}") from error
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
    try:
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        lock.release()
