"""Functions that read the bytes of image files, in folders or in archives, and that tell whether a file has changed."""

import os
import zipfile
from collections.abc import Iterable, Set
from errno import ENOENT
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dml.ops.regular_files import check_regular, check_size, read_regular

MISSING = (-1, -1)
"""The stamp of a file that doesn't exist."""
MAX_BYTES = 512 << 20
OPTION = "data.max_image_bytes"
"""The key of the configuration that sets the limit on image files."""


def read_content(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Read an image file, or the member of an archive that ``archive.zip/member`` names.

    Args:
        path: path of the file, or of the archive and its member.
        max_bytes: largest size of the file or of the unpacked member, ``data.max_image_bytes``.

    Raises:
        FileNotFoundError: if there is no such file or member.
        RefusedFileError: if it isn't a regular file, or is too large.
    """
    archive, separator, member = path.partition(".zip/")
    if not separator or os.path.exists(path):
        return read_regular(path, max_bytes, OPTION)
    try:
        return read_member(_open_archive(f"{archive}.zip", os.getpid()), member, max_bytes, OPTION)
    except KeyError as error:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path) from error


def read_member(archive: zipfile.ZipFile, member: str, max_bytes: int, option: str) -> bytes:
    """Read a member of an archive.

    Args:
        archive: an open archive.
        member: name of the member.
        max_bytes: largest size of the unpacked member.
        option: key of the configuration that sets ``max_bytes``, for the error message.

    Raises:
        KeyError: if there is no such member.
        RefusedFileError: if the member is larger.
    """
    entry = archive.getinfo(member)
    check_size(entry.file_size, max_bytes, option)
    with archive.open(entry) as file:
        return file.read(entry.file_size)  # without a number, a member that understates its size is unpacked as a whole


def list_members(archive: str) -> Set[str]:
    """Return the names of an archive's members.

    Raises:
        FileNotFoundError: if there is no such archive.
        RefusedFileError: if it isn't a regular file.
        zipfile.BadZipFile: if it is damaged.
    """
    return _open_archive(archive, os.getpid()).NameToInfo.keys()


@lru_cache(maxsize=8)
def _open_archive(path: str, process: int) -> zipfile.ZipFile:  # noqa: ARG001
    """Open an archive once a process: forked workers that share a file handle would share its position too."""
    check_regular(path)
    return zipfile.ZipFile(path)


def read_stamps(paths: Iterable[str]) -> NDArray[np.int64]:
    """Read the stamp of each file: its size in bytes and the time when it was last written, in nanoseconds.

    A file whose stamp is unchanged is assumed to be unchanged. A member of an archive has the stamp of the archive.

    Args:
        paths: paths of files, or of archives and their members.

    Returns:
        The stamps (N, 2); `MISSING` for a file that doesn't exist.
    """
    archive_stamps: dict[str, tuple[int, int]] = {}
    stamps = []
    for path in paths:
        stamp = _read_stamp(path)
        if stamp == MISSING and ".zip/" in path:
            archive = f"{path.partition('.zip/')[0]}.zip"
            stamp = archive_stamps[archive] = archive_stamps.get(archive) or _read_stamp(archive)
        stamps.append(stamp)
    return np.array(stamps, dtype=np.int64).reshape(-1, 2)


def _read_stamp(path: str) -> tuple[int, int]:
    try:
        state = os.stat(path)
    except OSError:
        return MISSING
    return state.st_size, state.st_mtime_ns
