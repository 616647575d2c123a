"""Functions that read the bytes of image files, in folders or in archives, and that tell whether a file has changed."""

import os
from collections.abc import Iterable
from errno import ENOENT

import numpy as np
from numpy.typing import NDArray

from dml.data.image_files.archives import DAMAGES, measure_member, read_member, split_member
from dml.ops.filesystem.regular_files import RefusedFileError, read_regular

Stamp = tuple[int, int]
"""The size of a file in bytes, and the time when it was last written, in nanoseconds; see `read_stamps`."""
MISSING: Stamp = (-1, -1)
"""The stamp of a file that doesn't exist."""
UNREADABLE = (OSError, RefusedFileError, *DAMAGES)
"""The errors of `read_content`."""
MAX_BYTES = 512 << 20
OPTION = "data.max_image_bytes"
"""The key of the configuration that sets the limit on image files."""


def read_content(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Read an image file, or the member of an archive that ``archive.zip/member`` or ``archive.tar/member`` names.

    Args:
        path: path of the file, or of the archive and its member.
        max_bytes: largest size of the file or of the unpacked member, ``data.max_image_bytes``.

    Raises:
        FileNotFoundError: if there is no such file or member.
        RefusedFileError: if it isn't a regular file, or is too large.
        one of `dml.data.image_files.archives.DAMAGES`: if the archive or its member is damaged, or the member can't be
            unpacked.
    """
    archive, member = split_member(path)
    if not member or os.path.exists(path):
        return read_regular(path, max_bytes, OPTION)
    try:
        return read_member(archive, member, max_bytes, OPTION)
    except KeyError as error:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path) from error


def read_stamps(paths: Iterable[str]) -> NDArray[np.int64]:
    """Read the stamp of each file: its size in bytes and the time when it was last written, in nanoseconds.

    A file whose stamp is unchanged is assumed to be unchanged. A member of an archive has the stamp of the archive.

    Args:
        paths: paths of files, or of archives and their members.

    Returns:
        The stamps (N, 2); `MISSING` for a file that doesn't exist.
    """
    archive_stamps: dict[str, Stamp] = {}
    stamps = []
    for path in paths:
        stamp = _read_stamp(path)
        archive, member = split_member(path)
        if stamp == MISSING and member:
            stamp = archive_stamps[archive] = archive_stamps.get(archive) or _read_stamp(archive)
        stamps.append(stamp)
    return np.array(stamps, dtype=np.int64).reshape(-1, 2)


def read_sizes(paths: Iterable[str]) -> list[int]:
    """Return the size in bytes of each file, or unpacked member of an archive; -1 for one that can't be read."""
    return [_read_size(path) for path in paths]


def _read_size(path: str) -> int:
    archive, member = split_member(path)
    try:
        return measure_member(archive, member) if member and not os.path.exists(path) else os.stat(path).st_size
    except (KeyError, *UNREADABLE):
        return MISSING[0]


def _read_stamp(path: str) -> Stamp:
    try:
        state = os.stat(path)
    except OSError:
        return MISSING
    return state.st_size, state.st_mtime_ns
