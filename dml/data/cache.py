"""Decoded and resized images in one file, memory-mapped, for transforms that begin with a `Resize`.

``warp-256.pixels`` holds the images one after the other, (h, w, 3) uint8; ``warp-256.parquet`` is its index: the
path of each, the stamp of the file that it was made from, where it begins and its shape. The index is written last,
so a cache without one is unfinished; ``warp-256.progress`` says how far it is.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from dml.data.contents import stamps_of
from dml.data.table import ImageTable
from dml.data.transforms import Resize
from dml.ops.errors import InputError
from dml.ops.paths import expand_home

FORMAT = 2
"""Goes up when what is decoded, or how it is stored, changes: older caches are then refused."""


class ImageCache:
    """The resized images of a table's rows.

    Args:
        path: the file of pixels.
        offsets: (N,) where the image of each row begins.
        shapes: (N, 2) its height and width; 0 for one that couldn't be read.
    """

    def __init__(self, path: Path, offsets: NDArray[np.int64], shapes: NDArray[np.int64]) -> None:
        self.path = path
        self.offsets = offsets
        self.shapes = shapes

    def pixels(self, row: int) -> Tensor | None:
        """(3, h, w) uint8, a copy; None if the image couldn't be read when the cache was made."""
        height, width = self.shapes[row].tolist()
        if not height:
            return None
        begin = int(self.offsets[row])
        stored = self._memory[begin : begin + height * width * 3]
        return torch.from_numpy(stored.reshape(height, width, 3).copy()).permute(2, 0, 1)

    @cached_property
    def _memory(self) -> NDArray[np.uint8]:
        return np.asarray(np.memmap(self.path, np.uint8, "r"))

    def __getstate__(self) -> dict[str, Any]:
        """Without the memory: another process maps the file itself, instead of being sent all of it."""
        return {name: value for name, value in self.__dict__.items() if name != "_memory"}


@dataclass(frozen=True)
class Files:
    """The files of one cache."""

    pixels: Path
    index: Path
    progress: Path


@dataclass(frozen=True)
class CacheFolder:
    """The folder of a data set's caches.

    Args:
        path: the folder.
        root: the data set's; images are known by their paths from there, so both may move together.
    """

    path: Path
    root: str | None

    @classmethod
    def of(cls, setting: str | None, root: str | None, name: str) -> "CacheFolder | None":
        """What ``data.cache`` says.

        Args:
            setting: a folder, in which each data set has its own; "auto": ``.dml`` in the data set's root, or
                beside it if it is a file, or nowhere if none is given; None: nowhere.
            root: of the data set.
            name: of the data set.
        """
        if setting is None or (setting == "auto" and root is None):
            return None
        root = str(expand_home(root)) if root is not None else None
        if root is not None and not Path(root).is_dir():
            name = Path(root).stem  # lists and archives may share a folder
        return cls((_base(root) / ".dml" if setting == "auto" and root else expand_home(setting)) / name, root)

    def names(self, paths: Sequence[str]) -> list[str]:
        """The paths as seen from the root, or from the folder that it is in if it is a file."""
        prefix = f"{_base(self.root)}/" if self.root else ""
        return [path.removeprefix(prefix) for path in paths]

    def files(self, resize: Resize) -> Files:
        """Where the cache of images that ``resize`` makes is, or would be."""
        stem = self.path / f"{resize.mode}-{resize.size}"
        return Files(*(stem.with_name(f"{stem.name}.{part}") for part in ("pixels", "parquet", "progress")))

    def find(self, table: ImageTable, resize: Resize | None) -> ImageCache | None:
        """The cache of the table's images as ``resize`` leaves them; None if there is none.

        Raises:
            InputError: if it lacks an image, or one has changed since, or the file of pixels is damaged.
        """
        if resize is None or not (files := self.files(resize)).index.exists():
            return None
        index = pq.read_table(files.index)
        made = description(index)
        remedy = f"run scripts/prepare.py with resize={resize.size} mode={resize.mode} again, or give data.cache=null"
        if made["format"] != FORMAT:
            raise InputError(f"{files.index}: made by another version; {remedy}")
        paths = table.paths.tolist()
        places = pc.index_in(pa.array(self.names(paths), pa.string()), value_set=index["path"].combine_chunks())
        if places.null_count:
            first = paths[places.is_null().index(True).as_py()]
            raise InputError(f"{files.index}: {places.null_count:,} images are not in it, such as {first}; {remedy}")
        rows = places.to_numpy()
        changed = (stamps_of(paths) != _columns(index, "bytes", "mtime_ns")[rows]).any(axis=1)
        if changed.any():
            first = paths[int(changed.argmax())]
            raise InputError(f"{files.index}: {changed.sum():,} images have changed since, such as {first}; {remedy}")
        size = files.pixels.stat().st_size if files.pixels.exists() else 0
        if size != made["bytes"]:
            raise InputError(f"{files.pixels}: {size:,} bytes, its index is of {made['bytes']:,}; {remedy}")
        offsets, shapes = _columns(index, "offset")[rows, 0], _columns(index, "height", "width")[rows]
        return ImageCache(files.pixels, offsets, shapes)


def _base(root: str) -> Path:
    return Path(root) if Path(root).is_dir() else Path(root).parent


def description(index: pa.Table) -> dict[str, Any]:
    """What an index says of its cache: "format", "mode", "size", and "bytes", the length of the file of pixels."""
    stated: dict[str, Any] = json.loads(index.schema.metadata[b"dml"])
    return stated


def _columns(index: pa.Table, *names: str) -> NDArray[np.int64]:
    return np.stack([index[name].to_numpy() for name in names], axis=1)
