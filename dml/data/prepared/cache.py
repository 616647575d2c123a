"""A cache of decoded and resized images in one file, for transforms that begin with a `Resize`.

``warp-256.pixels`` holds the images one after the other, (h, w, 3) uint8. ``warp-256.parquet`` is the index. For each
image it holds the path, the stamp and the content of the image file, the offset and shape of the pixels, and their
CRC-32. The index is written last, so a cache without an index is unfinished; ``warp-256.progress`` then lists the
images that are done.
"""

import hashlib
import mmap
import os
import shlex
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from dml.data.image_files.contents import find_changed
from dml.data.image_files.images import LIMITS
from dml.data.image_files.limits import ImageLimits
from dml.data.prepared.prepared_files import FOLDER, UnfitFileError, open_file, read_parquet, refuse_links
from dml.data.table import ImageTable
from dml.data.transforms import Resize
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.reading import parse_json


class PixelFile:
    """An open file that is read at any position, also by forked children; other processes open it anew.

    It isn't mapped into memory: where files are larger than the memory, a system that maps them reads up to forty times
    as much as is asked for. A file that is missing or can't be read is an UnfitFileError.
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
            if not (count := os.preadv(self._file.fileno(), [rest], start + array.size - len(rest))):
                return None
            rest = rest[count:]
        return array


FORMAT = 5
"""Version of the cache files; it goes up when the decoded pixels or their storage change. Older caches are refused."""


STAMP = ("bytes", "mtime_ns", "inode", "ctime_ns")
"""The columns of an index that hold the stamp of the image file; those before "content"."""

INDEX_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        *((name, pa.int64()) for name in STAMP),
        ("content", pa.int64()),
        ("offset", pa.int64()),
        ("height", pa.int64()),
        ("width", pa.int64()),
        ("crc32", pa.int64()),
    ]
)
"""The columns of an index: ``content`` is the `shorten_hash` of the image file's SHA-256."""


class DamagedPixelsError(InputError):
    """An error for stored pixels that aren't as they were written; the message doesn't name the image."""


class ImageCache:
    """The decoded and resized images of a table, one row of `INDEX_SCHEMA`'s columns for each.

    The pixels of an image are compared with their checksum once: by the first process that reads them, among this
    process and its forked children. The height of an unreadable image is 0.
    """

    def __init__(self, file: PixelFile, index: pa.Table, remedy: str) -> None:
        self.file = file
        self.remedy = remedy
        self.offsets = _stack_columns(index, "offset")[:, 0]
        self.shapes = _stack_columns(index, "height", "width")
        self.checksums = _stack_columns(index, "crc32")[:, 0].astype(np.uint32)
        self._share_checks()

    def pixels(self, row: int) -> Tensor | None:
        """Read the image's pixels (3, h, w) uint8, or raise a DamagedPixelsError; None if its file was unreadable."""
        height, width = self.shapes[row].tolist()
        if not height:
            return None
        stored = self.file.read(int(self.offsets[row]), (height, width, 3))
        if stored is None or not (self._is_checked[row] or crc32(stored.data) == self.checksums[row]):
            raise DamagedPixelsError(
                f"its pixels in {self.file.path} are damaged (their checksum differs); {self.remedy}"
            )
        self._is_checked[row] = True
        return torch.from_numpy(stored).permute(2, 0, 1)

    def _share_checks(self) -> None:
        # This process shares anonymous memory with its forked children, such as the workers of a data loader.
        self._is_checked = np.frombuffer(mmap.mmap(-1, max(1, len(self.shapes))), np.bool_)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the memory that is shared with forked children alone."""
        return {name: value for name, value in self.__dict__.items() if name != "_is_checked"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share_checks()


@dataclass(frozen=True)
class CacheFiles:
    """The paths of the three files of a cache."""

    pixels: Path
    index: Path
    progress: Path


@dataclass(frozen=True)
class CacheFolder:
    """The folder with the caches and the other prepared files of a data set.

    They name images by their paths relative to the root, so that the data set and the folder can be moved together.
    ``arguments`` of the command line name both, for error lines.
    """

    path: Path
    root: str | None
    arguments: str = field(default="", compare=False)

    @classmethod
    def from_setting(cls, setting: str | None, root: str | None, name: str) -> "CacheFolder | None":
        """Return the folder that ``data.cache`` selects; None if the data set has no such folder.

        A path is a folder that holds one folder a data set, whose name ends in a hash of the root: two data sets of one
        name don't share it. "auto" is ``.dml`` in the root of the data set, or beside the root if that is a file.
        """
        if setting is None or (setting == "auto" and root is None):
            return None
        arguments = f"dataset={name}"
        root = str(expand_home(root)) if root is not None else None
        if root is not None:
            arguments += f" {shlex.quote(f'dataset.root={root}')}"
        if setting != "auto":
            arguments += f" {shlex.quote(f'data.cache={setting}')}"
        if root is not None and not Path(root).is_dir():
            name = Path(root).stem  # several lists or archives may be in one folder
        if setting == "auto" and root:
            return cls(_base_folder(root) / FOLDER / name, root, arguments)
        path = expand_home(setting) / name
        if root is not None:
            path = path.with_name(f"{name}-{hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:8]}")
        return cls(path, root, arguments)

    def relative_paths(self, paths: Sequence[str]) -> list[str]:
        """Make paths relative to the root of the data set, or to the root's folder if the root is a file."""
        prefix = f"{_base_folder(self.root)}/" if self.root else ""
        return [path.removeprefix(prefix) for path in paths]

    def files(self, resize: Resize) -> CacheFiles:
        """Return the paths of the cache of images that ``resize`` has resized, whether or not the cache exists."""
        stem = self.path / f"{resize.mode}-{resize.size}"
        return CacheFiles(*(stem.with_name(f"{stem.name}.{ending}") for ending in ("pixels", "parquet", "progress")))

    def find(self, table: ImageTable, resize: Resize | None, limits: ImageLimits = LIMITS) -> ImageCache | None:
        """Open the cache of the table's images with this ``resize`` and background; None if there is none."""
        refuse_links(self.path)
        if resize is None:
            return None
        files = self.files(resize)
        changed = {} if limits.color == LIMITS.color else {"background": limits.background}
        options = [shlex.quote(f"data.{name}={value}") for name, value in changed.items()]
        command = " ".join(filter(None, ("dml prepare", self.arguments, *options, f"resize={resize.size}")))
        remedy = f"run {command} mode={resize.mode} again, or give data.cache=null"
        try:
            return self._read(files, table, remedy, str(limits.color))
        except UnfitFileError as error:
            raise InputError(f"{error}; {remedy}") from error

    def _read(self, files: CacheFiles, table: ImageTable, remedy: str, background: str) -> ImageCache | None:
        try:
            index = read_parquet(files.index)
        except FileNotFoundError:
            return None
        file = PixelFile(files.pixels)  # of a cache that is rebuilt at this moment, the checksums below differ
        description = read_description(index)
        if description.get("format") != FORMAT or not index.schema.equals(INDEX_SCHEMA):
            raise UnfitFileError(f"{files.index}: made by another version")
        if description.get("background") != background:
            raise UnfitFileError(f"{files.index}: made with another data.background")
        index_rows = self._find_index_rows(index, files.index, table.paths.tolist())
        if len(file) != description["bytes"]:
            raise UnfitFileError(f"{files.pixels}: {len(file):,} bytes, its index is of {description['bytes']:,}")
        columns = index.select(["offset", "height", "width", "crc32"]).take(index_rows)
        # Damage would change the checksum of the index; only somebody who wrote a checksum can have written this.
        if _stack_columns(columns, "height", "width").min(initial=0) < 0:
            raise UnfitFileError(f"{files.index}: has images of negative size")
        return ImageCache(file, columns, remedy)

    def _find_index_rows(self, index: pa.Table, file: Path, paths: list[str]) -> pa.Array:
        """Return the row in the index of each image, and refuse an index that lacks an image or is older than one."""
        names = pa.array(self.relative_paths(paths), pa.string())
        index_rows = pc.index_in(names, value_set=index["path"].combine_chunks())
        if index_rows.null_count:
            first = paths[index_rows.is_null().index(True).as_py()]
            raise UnfitFileError(f"{file}: {index_rows.null_count:,} images are not in it, such as {first}")
        has_changed, _ = find_changed(paths, _stack_columns(index, *STAMP, "content")[index_rows.to_numpy()])
        if has_changed.any():
            first = paths[int(has_changed.argmax())]
            raise UnfitFileError(f"{file}: {has_changed.sum():,} images have changed since, such as {first}")
        return index_rows


def _base_folder(root: str) -> Path:
    return Path(root) if Path(root).is_dir() else Path(root).parent


def read_description(index: pa.Table) -> dict[str, Any]:
    """Return the description that the index of a cache holds; empty for a table that isn't an index.

    It holds the version of the cache files ("format"), the mode and size of the `Resize`, the color behind transparent
    pixels ("background"), and the length of the file of pixels ("bytes").
    """
    description: dict[str, Any] = parse_json((index.schema.metadata or {}).get(b"dml", "{}"))
    return description


def _stack_columns(index: pa.Table, *names: str) -> NDArray[np.int64]:
    return np.stack([index[name].to_numpy() for name in names], axis=1)
