"""The file of pixels of a cache, open for reading at any position."""

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.data.prepared.prepared_files import UnfitFileError, open_file


class PixelFile:
    """An open file that is read at any position, also by forked children; other processes open it anew.

    It isn't mapped into memory: where files are larger than the memory, a system that maps them reads up to forty times
    as much as is asked for. The file is closed when the object is gone.

    Args:
        path: path of the file.

    Raises:
        UnfitFileError: if there is no such file, or it can't be read.
        InputError: if the path is a link or a folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open_file(path)
        except FileNotFoundError as error:
            raise UnfitFileError(f"{path}: is missing") from error
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def __reduce__(self) -> tuple[Any, ...]:
        return PixelFile, (self.path,)

    def read(self, start: int, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
        """Read an array of bytes that begins at a position; None if the file ends before."""
        array = np.empty(shape, np.uint8)
        rest = array.reshape(-1).data
        while len(rest):
            if not (count := self._read_some(rest, start + array.size - len(rest))):
                return None
            rest = rest[count:]
        return array

    def _read_some(self, memory: memoryview, start: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [memory], start)
        self._file.seek(start)  # on Windows, where no other process has inherited the position
        return self._file.readinto(memory)  # type: ignore[attr-defined, no-any-return]
