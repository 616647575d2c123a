"""Paths that a user gives, files that are whole or missing whatever interrupts their writing, and locks on files."""

import csv
import errno
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from dml.runtime import signals
from dml.runtime.errors import InputError, show
from dml.runtime.text import printable

URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""The beginning of a URL, also of one in a `pathlib.Path`, which has a single slash."""


def expand_home(path: str | Path) -> Path:
    """Return a path that a user gave with ``~`` or ``~name`` replaced by the home folder.

    A shell does so where the path is a word of its own, but not in ``dataset.root=~/images``.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InputError(f"{show(path)}: no path; give that of a file or folder, or . for the working folder")
    if URL.match(os.fspath(path)):
        raise InputError(f"{printable(path)}: a URL; only files can be read, so download it first")
    return Path(os.path.expanduser(path))


def absolute_path(path: str | Path) -> str:
    """Return the absolute path of a file, without ``..``.

    ``link/../1.jpg`` lies beside the folder that the link leads to, where `os.path.abspath` doesn't look.
    """
    text = os.fspath(path)
    absolute = os.path.abspath(text)
    if os.pardir in text.split(os.sep) and (real := os.path.realpath(text)) != os.path.realpath(absolute):
        return real
    return absolute


def shorten_path(path: str) -> str:
    """Return the path from the working folder for a file below it, and any other path as it is.

    >>> shorten_path(os.path.abspath("photos/1.jpg")), shorten_path("/elsewhere/1.jpg")
    ('photos/1.jpg', '/elsewhere/1.jpg')
    """
    return path.removeprefix(os.path.join(os.getcwd(), ""))


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


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows, the header first, to a CSV file in one step: the file is never seen half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def _remove_partial_files() -> None:
    for partial in [*_partial_files]:
        _delete(partial)


signals.before_end.append(_remove_partial_files)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_partial_files.clear)


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
