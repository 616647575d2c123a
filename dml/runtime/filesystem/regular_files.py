"""Safe reading of files from strangers: only regular files are read, and only up to a limit."""

import os
import stat
from pathlib import Path

FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class RefusedFileError(Exception):
    """An error for a file that isn't regular or is larger than a limit.

    Args:
        reason: reason for the refusal, without the name of the file.
        remedy: option that raises the limit, and the value to give; empty if there is none.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the reason and the remedy in one line."""
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


def check_regular(path: str | Path) -> os.stat_result:
    """Make sure that a path, after following links, leads to a regular file, and return what the system knows of it.

    The file isn't opened, because opening a pipe would wait for its other end.

    Raises:
        RefusedFileError: if the path leads to a folder, a pipe, a socket or a device, or holds a NUL byte.
        OSError: if there is no such file, or the path can't be followed.
    """
    if "\0" in str(path):
        raise RefusedFileError("a NUL byte, which no file's name holds")
    state = os.stat(path)
    _check_kind(state)
    return state


def read_regular(path: str | Path, max_bytes: int, option: str) -> bytes:
    """Read the bytes of a regular file.

    Args:
        path: path of the file; links are followed.
        max_bytes: largest size that the file may have.
        option: key of the configuration that sets ``max_bytes``, for the error message.

    Raises:
        RefusedFileError: if the path doesn't lead to a regular file, or the file is larger than ``max_bytes``.
        OSError: if there is no such file, or it can't be read.
    """
    check_regular(path)
    # A pipe may have replaced the file since the check: O_NONBLOCK, which regular files ignore, doesn't wait for it.
    descriptor = os.open(path, FLAGS)
    try:  # reading through a file object would take twice as long
        state = os.fstat(descriptor)
        _check_kind(state)
        check_size(state.st_size, max_bytes, option)
        content = os.read(descriptor, state.st_size + 1)
        if len(content) == state.st_size:
            return content
        return content + _read_rest(descriptor, len(content), max_bytes, option)
    finally:
        os.close(descriptor)


def _read_rest(descriptor: int, size: int, max_bytes: int, option: str) -> bytes:
    """Read the bytes after the first ``size`` bytes.

    They are needed if a file is growing, claims less than it holds, as in /proc, or is delivered in parts.
    """
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
        size += len(part)
        check_unpacked(size, max_bytes, option)
    return b"".join(parts)


def check_size(size: int, max_bytes: int, option: str) -> None:
    """Make sure that a content of ``size`` bytes may be read.

    Args:
        size: number of bytes of the content.
        max_bytes: largest number of bytes that may be read.
        option: key of the configuration that sets ``max_bytes``.

    Raises:
        RefusedFileError: if the content is larger; the message names the option and the value that it needs.
    """
    if size > max_bytes:
        raise RefusedFileError(f"{size:,} bytes, at most {max_bytes:,} are read", f"{option}={size} reads it")


def check_unpacked(size: int, max_bytes: int, option: str) -> None:
    """Make sure that a content of which ``size`` bytes are known may be read; its full size isn't known yet.

    Args:
        size: number of bytes that have been read or unpacked.
        max_bytes: largest number of bytes that may be read.
        option: key of the configuration that sets ``max_bytes``.

    Raises:
        RefusedFileError: if the content is larger; the message names the option.
    """
    if size > max_bytes:
        raise RefusedFileError(f"more than {max_bytes:,} bytes", f"{option} with a larger number reads it")


def _check_kind(state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise RefusedFileError(f"{KINDS.get(stat.S_IFMT(state.st_mode), 'a special file')}, not a regular file")
