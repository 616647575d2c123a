"""A data set's folder of prepared files, with shards of decoded images for transforms that begin with a `Resize`.

``warp-256.0a1b2c3d.pixels`` is a shard: some images one after the other, (h, w, 3) uint8. Its index, a JSON file of the
same name, is written last, so a shard without an index doesn't count. It holds for each image the stamp and the content
of its file, and where its pixels are; and for the pixels a stamp, and a checksum that is compared if the stamp differs.
"""

import hashlib
import json
import os
import shlex
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dml.data.contents import find_changed, read_stamps
from dml.data.images import LIMITS, ImageLimits
from dml.data.table import ImageTable
from dml.data.transforms import Resize
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home, holding
from dml.runtime.reading import parse_json, read_bounded

FOLDER = ".dml"
FORMAT = 6
"""Version of the shards; it goes up when the decoded pixels or their storage change. Others are made anew."""


class StoredImage(NamedTuple):
    """The stamp and the content (`shorten_hash`) of an image's file, and where its pixels are in a shard.

    The height of an image without pixels is 0: it can't be read, or would be too large.
    """

    bytes: int
    mtime_ns: int
    inode: int
    ctime_ns: int
    content: int
    start: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """The number of bytes of the pixels."""
        return 3 * self.height * self.width


@dataclass
class Shard:
    """The index of a shard: the background of its images, stamp and checksum of its pixels, and the images by name."""

    path: Path
    background: str
    stamp: list[int]
    checksum: int
    images: dict[str, StoredImage]

    @property
    def pixels(self) -> Path:
        """The file of the pixels."""
        return self.path.with_suffix(".pixels")

    def to_json(self) -> str:
        """Return what `read_shard` reads: all but the path, with a checksum."""
        content = {name: value for name, value in vars(self).items() if name != "path"}
        return json.dumps({"format": FORMAT, "shard": content, "checksum": crc32(json.dumps(content).encode())})


def read_shard(path: Path, background: str, *, compare_contents: bool = False) -> Shard:
    """Read an index, or raise an InputError if the shard is of another version or background, or is damaged.

    Pixels of another stamp than the stored one, or all with ``compare_contents``, are compared with their checksum.
    """
    try:
        stored = parse_json(read_bounded(path))
        content = stored["shard"]
        images = {name: StoredImage(*numbers) for name, numbers in content["images"].items()}
        shard = Shard(path, content["background"], content["stamp"], content["checksum"], images)
        stamp = read_stamps([str(shard.pixels)])[0].tolist()
        is_sound = (stored["format"], stored["checksum"]) == (FORMAT, crc32(json.dumps(content).encode()))
        if is_sound and (stamp != shard.stamp or compare_contents):
            is_sound = stamp[0] == shard.stamp[0] and _compute_checksum(shard.pixels) == shard.checksum
        if not is_sound:
            raise ValueError(FORMAT)  # noqa: TRY301
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise InputError(f"{path}: it, or its pixels, are damaged or of another version") from error
    if shard.background != background:
        raise InputError(f"{path}: made with another data.background")
    shard.stamp = stamp
    return shard


def _compute_checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            checksum = crc32(part, checksum)
    return checksum


class PixelFile:
    """An open file that is read at any position, also by forked children; other processes open it anew.

    It isn't mapped into memory: where files are larger than the memory, a system that maps them reads up to forty times
    as much as is asked for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)

    def __reduce__(self) -> tuple[Any, ...]:
        return PixelFile, (self.path,)

    def read(self, start: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Read an array of bytes that begins at a position."""
        array = np.empty(shape, np.uint8)
        if os.preadv(self._file.fileno(), [array.reshape(-1).data], start) != array.size:
            raise InputError(f"{self.path}: was cut short after the training began; run dml prepare again")
        return array


@dataclass(frozen=True)
class ImageCache:
    """The decoded and resized images of a table: for each row its file, start, height and width."""

    files: list[PixelFile]
    places: NDArray[np.int64]

    def pixels(self, row: int) -> Tensor | None:
        """Read the image's pixels (3, h, w) uint8; None if the cache holds none, as of an unreadable image."""
        number, start, height, width = self.places[row].tolist()
        if not height:
            return None
        return torch.from_numpy(self.files[number].read(start, (height, width, 3))).permute(2, 0, 1)


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
    def from_setting(cls, setting: str, root: str | None, name: str) -> "CacheFolder":
        """Return the folder that ``data.cache`` selects.

        A path is a folder that holds one folder a data set, whose name ends in a hash of the root: two data sets of one
        name don't share it. "auto" is ``.dml`` in the root of the data set, or beside the root if that is a file.
        """
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

    def shard_paths(self, resize: Resize, ending: str = "json") -> list[Path]:
        """Return the files with this ending of all shards of images that ``resize`` has resized."""
        return sorted(self.path.glob(f"{resize.mode}-{resize.size}.*.{ending}"))

    def find(self, table: ImageTable, resize: Resize | None, limits: ImageLimits = LIMITS) -> ImageCache | None:
        """Open the cache of the table's images with this ``resize`` and background; None if there is none.

        A cache that lacks an image, or holds it as it was before its file changed, is an InputError.
        """
        refuse_links(self.path)
        if resize is None or not (indexes := self.shard_paths(resize)):
            return None
        try:
            return self._open([read_shard(path, str(limits.color)) for path in indexes], table.paths.tolist())
        except (InputError, FileNotFoundError) as error:
            option = f"data.background={limits.background}"
            options = [] if limits.color == LIMITS.color else [shlex.quote(option)]
            words = ["dml prepare", self.arguments, *options, f"resize={resize.size}", f"mode={resize.mode}"]
            remedy = f"run {' '.join(filter(None, words))} again, or give data.cache=null"
            raise InputError(f"{error}; {remedy}") from error

    def _open(self, shards: Sequence[Shard], paths: list[str]) -> ImageCache:
        rows = {name: row for row, name in enumerate(name for shard in shards for name in shard.images)}
        images = [image for shard in shards for image in shard.images.values()]
        numbers = np.array([*images, [-2] * len(StoredImage._fields)], np.int64)
        shard_numbers = np.repeat(np.arange(len(shards) + 1), [*(len(shard.images) for shard in shards), 1])
        chosen = np.array([rows.get(name, -1) for name in self.relative_paths(paths)], np.int64)  # -1: the added row
        has_changed = find_changed(paths, numbers[chosen, :5])
        if has_changed.any():
            count, first = np.count_nonzero(has_changed), paths[int(has_changed.argmax())]
            raise InputError(f"{self.path}: {count:,} images are new or have changed since, such as {first}")
        places = np.column_stack([shard_numbers[chosen], numbers[chosen, 5:]])
        return ImageCache([PixelFile(shard.pixels) for shard in shards], places)


def _base_folder(root: str) -> Path:
    return Path(root) if Path(root).is_dir() else Path(root).parent


def refuse_links(folder: Path) -> None:
    """Make sure that a folder of prepared files, and the ``.dml`` folder around it, hold files and folders alone.

    A data set may come from a stranger, with links to other files of the user, or pipes that would be waited for.
    """
    for checked in [folder.parent, folder] if folder.parent.name == FOLDER else [folder]:
        entries = [checked, *(sorted(checked.iterdir()) if os.access(checked, os.R_OK) and checked.is_dir() else ())]
        for path in entries:
            if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
                kind = f"is a link to {os.readlink(path)}" if path.is_symlink() else "isn't a file"
                raise InputError(
                    f"{path}: {kind}, and prepared files are never read or written through such: delete it, or give "
                    "data.cache=FOLDER, or null for none"
                )


def make_writable_folder(folder: Path) -> None:
    """Make a folder of prepared files, if there is none."""
    refuse_links(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        raise InputError(f"{folder}: can't be written to; give data.cache=FOLDER, also to train.py")


@contextmanager
def hold_preparation_lock(folder: Path) -> Iterator[None]:
    """Hold the lock ``<folder>.lock``, with which one process at a time prepares a data set; readers need no lock."""
    path = folder.with_name(f"{folder.name}.lock")
    refuse_links(folder)
    with holding(path, name=folder, does="is preparing it; try again when that has ended"):
        yield
