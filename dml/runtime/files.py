"""Functions that write files and folders so that each is complete or missing, whatever interrupts the writing."""

import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dml.runtime import signals
from dml.runtime.errors import InputError

PARTIAL, OLD = ".partial", ".old"
"""The ends of the names of a file or folder that is being written, and of a folder that is being replaced."""
_partial_files: set[Path] = set()
"""The files and folders that this process is writing."""

DISK_ERRORS = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or ask for a larger quota",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "choose a folder that can be written to",
    errno.EACCES: "give yourself the permission, or choose another folder",
    errno.EPERM: "give yourself the permission, or choose another folder",
    errno.EIO: "check the disk",
    errno.ENOTDIR: "choose a path below a folder, not below a file",
    errno.EEXIST: "choose a path where no file stands",
    errno.EISDIR: "give the path of a file, not of a folder",
}
"""What a user can do about an error of the disk, by the number of the error."""


@contextmanager
def in_one_line(path: str | Path) -> Iterator[None]:
    """Raise an `InputError` where the disk refuses what the ``with`` body, called by a user's script, writes."""
    try:
        yield
    except OSError as error:
        remedy = DISK_ERRORS.get(error.errno or 0, "choose another folder")
        raise InputError(f"{path}: {error.strerror or error}; {remedy}") from error


@contextmanager
def replacing(path: Path, *, on_disk: bool = False) -> Iterator[Path]:
    """Yield the path of an empty file to write to, which replaces ``path`` after the body of the ``with`` statement.

    The file at ``path`` is therefore complete or missing at any time. The partial file is created exclusively, so that
    no other process and no link can lead to it, and it is deleted if the body raises an exception.

    Args:
        path: file to write or to replace.
        on_disk: whether to wait until the disk has the new file, so that even a power failure leaves one of the two.

    Raises:
        OSError: if the disk refuses the file. The error names ``path``, even if the library that writes the file raised
            an error without the number or the path.
    """
    if path.is_dir():  # also "." and "/", which have no name to derive one from
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with _writing(path) as partial:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield partial
        if on_disk:
            wait_for_disk(partial)
        partial.replace(path)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield the path of an empty folder to fill with files, which replaces ``path`` after the ``with`` body.

    Where the system can exchange two folders, as Linux can on most disks, the old or the new one is at ``path`` at any
    time. Elsewhere a process may be killed between two renamings; `clean_up` then puts the old one back.

    Raises:
        OSError: if the disk refuses the folder. The error names ``path``.
    """
    with _writing(path) as partial:
        partial.mkdir(parents=True)
        yield partial
        for file in partial.iterdir():
            wait_for_disk(file)
        if not _exchange(partial, path):
            if path.exists():
                path.rename(partial.with_suffix(OLD))
            partial.rename(path)


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` for what shall replace it, and clean up after the ``with`` body.

    An error of the disk about a file there, or about none, names ``path`` instead.
    """
    beginning = str(path.with_name(f".{path.name}."))
    partial = Path(f"{beginning}{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    try:  # a signal may raise an exception at any line from here on
        _partial_files.add(partial)
        yield partial
    except (OSError, RuntimeError) as error:
        refusal = error if isinstance(error, FileNotFoundError) else disk_refusal(error)
        if refusal is not None and str(refusal.filename or beginning).startswith(beginning):
            raise OSError(refusal.errno, os.strerror(refusal.errno or 0), str(path)) from error
        raise
    finally:
        _partial_files.discard(partial)
        clean_up(path)


def clean_up(path: Path) -> None:
    """Delete what processes left that ended while they replaced ``path``; put the old folder back if none is there."""
    name = re.escape(path.name)  # older versions wrote names of the second kind
    pattern = re.compile(rf"\.{name}\.(\d+-[0-9a-f]{{8}}\.(partial|old)|(partial|old)-[0-9a-f]{{8}})")
    for left in sorted(path.parent.glob(".*")):  # the old folder before the partial one
        if pattern.fullmatch(left.name) and not _may_be_in_use(left):
            with suppress(OSError):  # on a disk that has become read-only nothing can be deleted
                if left.suffix.startswith(OLD) and not path.exists():
                    left.rename(path)
                _delete(left)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two paths in one step; return False if one is missing, or the system can't."""
    if sys.platform != "linux":
        return False
    import ctypes  # here, because only commands that save a model need it

    rename: Any = getattr(ctypes.CDLL(None), "renameat2", lambda *_: -1)  # glibc has it from 2.28 on
    working_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(working_folder, os.fsencode(first), working_folder, os.fsencode(second), exchange) == 0)


def wait_for_disk(path: Path) -> None:
    """Wait until the disk has the content of a file."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file in one step, see `replacing`, into a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def disk_refusal(error: BaseException) -> OSError | None:
    """Return the error of the disk, one of `DISK_ERRORS`, that an exception is or was caused by; None without one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def remove_partial_files(folder: Path, left_alone: Path | None = None, *, is_shared: bool = False) -> None:
    """Delete the partial files that killed processes left below ``folder``.

    Args:
        folder: folder in which files were written, at any depth.
        left_alone: folder below it in which other processes may be writing.
        is_shared: whether processes of this machine may be writing in the folder now, whose files are left alone.
    """
    for partial in folder.rglob(f".*{PARTIAL}"):
        if left_alone not in partial.parents and not (is_shared and _may_be_in_use(partial)):
            _delete(partial)


def _may_be_in_use(partial: Path) -> bool:
    """Return whether the process is at work whose number `_writing` has written into the name of a file or folder."""
    number = re.search(r"\.(\d+)-[0-9a-f]+\.\w+$", partial.name)
    if number is None:
        return False
    if int(number[1]) == os.getpid():
        return partial.with_suffix(PARTIAL) in _partial_files
    if not hasattr(os, "fork"):  # on Windows os.kill would end the process
        return True
    try:
        with suppress(PermissionError):  # it lives, and is another user's
            os.kill(int(number[1]), 0)
    except ProcessLookupError:
        return False
    return True


def remove_partial_files_of_this_process() -> None:
    """Delete the files that this process is writing; it is called before a process ends without other clean-up."""
    for partial in list(_partial_files):
        _delete(partial)


signals.before_end.append(remove_partial_files_of_this_process)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_partial_files.clear)
