"""The bytes of image files, in folders or in archives, and how to tell that they have changed."""

import os
import zipfile
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MISSING = (-1, -1)


def content_of(path: str) -> bytes:
    """The bytes of the file at ``path``, or of the member that ``archive.zip/member`` names.

    Raises:
        FileNotFoundError, KeyError: if there is no such file, or no such member.
    """
    archive, separator, member = path.partition(".zip/")
    if not separator or os.path.exists(path):
        with open(path, "rb") as file:
            return file.read()
    return _archive(f"{archive}.zip", os.getpid()).read(member)


@lru_cache(maxsize=8)
def _archive(path: str, process: int) -> zipfile.ZipFile:  # noqa: ARG001
    """One open archive a process: forked workers that share a file handle would share its position too."""
    return zipfile.ZipFile(path)


def stamps_of(paths: Iterable[str]) -> NDArray[np.int64]:
    """(N, 2): the bytes of each file and when it was written, in ns, or `MISSING`; for an archive's member those of
    the archive. A file whose stamp is unchanged is taken for unchanged.
    """
    archives: dict[str, tuple[int, int]] = {}
    stamps = []
    for path in paths:
        stamp = _stamp(path)
        if stamp == MISSING and ".zip/" in path:
            archive = f"{path.partition('.zip/')[0]}.zip"
            stamp = archives[archive] = archives.get(archive) or _stamp(archive)
        stamps.append(stamp)
    return np.array(stamps, dtype=np.int64).reshape(-1, 2)


def _stamp(path: str) -> tuple[int, int]:
    try:
        state = os.stat(path)
    except OSError:
        return MISSING
    return state.st_size, state.st_mtime_ns
