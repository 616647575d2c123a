"""Functions that write files and folders so that each is complete or missing, whatever interrupts the writing."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dml.runtime import signals
from dml.runtime.errors import InputError

PARTIAL, OLD = ".partial", ".old"
"""The ends of the names of a file or folder that is being written, and of a folder that is being replaced."""

LEFT = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)-[0-9a-f]{8}\.(partial|old)")
"""The name beside a file or folder under which a process writes it, or keeps the old one while it is replaced."""

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

    The partial file is created exclusively, so that no other process and no link can lead to it, and it is deleted if
    the body raises an exception. An OSError names ``path``, even if the library that writes the file raised an error
    without the number or the path. With ``on_disk`` the disk has the file before, so that even a power failure leaves
    the old or the new one.
    """
    if path.is_dir():  # also "." and "/", which have no name to derive one from
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with _writing(path) as partial:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield partial
        if on_disk:
            _wait_for_disk(partial)
        partial.replace(path)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield the path of an empty folder to fill with files, which replaces ``path`` after the ``with`` body.

    A process that is killed between the two renamings leaves the old folder under another name; `clean_up`, which a
    reader calls first, puts it back.
    """
    with _writing(path) as partial:
        partial.mkdir(parents=True)
        yield partial
        for file in partial.iterdir():
            _wait_for_disk(file)
        if path.exists():
            path.rename(partial.with_suffix(OLD))
        partial.rename(path)


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` for what shall replace it, in whose place an error of the disk names ``path``."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    _partial_files.add(partial)
    try:
        yield partial
    except (OSError, RuntimeError) as error:  # the second is what torch makes of the first
        cause: BaseException | None = error
        while cause and not (isinstance(cause, OSError) and cause.errno in (errno.ENOENT, *DISK_ERRORS)):
            cause = cause.__cause__ or cause.__context__
        if not isinstance(cause, OSError) or not str(cause.filename or partial).startswith(str(partial)):
            raise
        raise OSError(cause.errno, os.strerror(cause.errno or 0), str(path)) from error
    finally:
        _partial_files.discard(partial)
        clean_up(path.parent, path.name)


def clean_up(folder: Path, name: str = "") -> None:
    """Remove what processes were writing into a folder when they ended, and put back a folder that they replaced.

    The folder needn't exist; with a name, only the remains of this file or folder are meant.
    """
    for left in [*folder.iterdir()] if folder.is_dir() else ():
        match = LEFT.fullmatch(left.name)
        if match is None or name not in ("", match["name"]) or _is_at_work(int(match["process"]), left):
            continue
        with suppress(OSError):  # it stays if it is another user's, or the disk has become read-only
            if left.suffix == OLD and not (folder / match["name"]).exists():
                left.rename(folder / match["name"])
            else:
                _delete(left)


def _is_at_work(process: int, left: Path) -> bool:
    """Tell whether the process still writes that has given a partial file, or an old folder, its name."""
    if process == os.getpid():
        return left.with_suffix(PARTIAL) in _partial_files
    try:
        if hasattr(os, "fork"):  # on Windows os.kill would end the process
            os.kill(process, 0)
    except OSError as error:
        return error.errno != errno.ESRCH  # a process of another user's may not be asked
    return True


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _wait_for_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file in one step, see `replacing`, into a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _remove_partial_files() -> None:
    for partial in [*_partial_files]:
        _delete(partial)


signals.before_end.append(_remove_partial_files)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_partial_files.clear)
