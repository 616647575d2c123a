"""Verification of a data set: every file is read once, and what was found stays beside it.

``table.parquet`` is the data set's table with what was found of each image; ``verified.jsonl`` is as much of it as a
verification has found so far. An image whose file is unchanged isn't read again.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml.data.cache import CacheFolder
from dml.data.contents import stamps_of
from dml.data.images import ImageFile, MissingImageError, UnreadableImageError
from dml.data.processes import in_processes
from dml.data.table import TRAINING, UNKNOWN, ImageTable, faults
from dml.ops.files import replacing

CHUNK = 64  # images that are read between two lines of the journal
NO_FILE = "no such file"


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """What was found of an image.

    Attributes:
        bytes, mtime_ns: its file's stamp.
        height, width: in pixels, upright; 0 if it can't be read.
        sha256: of the file's content.
        error: why it can't be read, or empty.
    """

    bytes: int
    mtime_ns: int
    height: int
    width: int
    sha256: str
    error: str


def check_images(
    table: ImageTable, folder: CacheFolder, *, processes: int, advance: Callable[[int], None]
) -> dict[str, CheckedImage]:
    """Reads and decodes each image that hasn't been before -> for each path, in the table's order, what was found.

    Args:
        table: the data set.
        folder: where what was found is kept; it exists.
        processes: how many share the work.
        advance: is told how many more images are done.
    """
    paths = [*dict.fromkeys(table.paths.tolist())]
    stamps = [tuple(stamp) for stamp in stamps_of(paths).tolist()]
    before = read_verified(folder)
    found = {}
    for path, name, stamp in zip(paths, folder.names(paths), stamps, strict=True):
        image = before.get(name)
        if image and not image.error and (image.bytes, image.mtime_ns) == stamp:
            found[path] = image
    advance(len(found))
    left = [(path, stamp) for path, stamp in zip(paths, stamps, strict=True) if path not in found]
    with _journal(folder).open("a", encoding="utf-8") as journal:
        for chunk in in_processes(_check, [left[i : i + CHUNK] for i in range(0, len(left), CHUNK)], processes):
            names = folder.names([*chunk])
            entries = {name: asdict(image) for name, image in zip(names, chunk.values(), strict=True)}
            journal.write(json.dumps(entries) + "\n")
            journal.flush()
            found |= chunk
            advance(len(chunk))
    return {path: found[path] for path in paths}


def _check(images: Sequence[tuple[str, tuple[int, int]]]) -> dict[str, CheckedImage]:
    return {path: _checked(path, stamp) for path, stamp in images}


def _checked(path: str, stamp: tuple[int, int]) -> CheckedImage:
    try:
        file = ImageFile(path)
        file.pixels()
    except MissingImageError:
        return CheckedImage(*stamp, 0, 0, "", NO_FILE)
    except UnreadableImageError as error:
        reason = " ".join(f"{type(error.__cause__).__name__}: {error.__cause__}".split())
        return CheckedImage(*stamp, 0, 0, "", reason[:120])
    return CheckedImage(*stamp, file.height, file.width, hashlib.sha256(file.content).hexdigest(), "")


def _journal(folder: CacheFolder) -> Path:
    return folder.path / "verified.jsonl"


def read_verified(folder: CacheFolder) -> dict[str, CheckedImage]:
    """Read what the last verification found, and one that was cut short after it. -> by the images' names"""
    found = {}
    names = [field.name for field in fields(CheckedImage)]
    if (path := folder.path / "table.parquet").exists():
        columns = pq.read_table(path, columns=["path", *names]).to_pydict()
        found = {name: CheckedImage(*rest) for name, *rest in zip(*columns.values(), strict=True)}
    if _journal(folder).exists():
        for line in _journal(folder).read_text(encoding="utf-8").splitlines():
            try:
                entries = json.loads(line)
            except json.JSONDecodeError:  # a kill cut it short, and the next line was written on to it
                continue
            found |= {name: CheckedImage(**entry) for name, entry in entries.items()}
    return found


def write_table(folder: CacheFolder, table: ImageTable, images: Mapping[str, CheckedImage]) -> Path:
    """Writes ``table.parquet``: a row an image with its path from the root, split, labels and what was found."""
    columns: dict[str, Any] = {
        "path": folder.names(table.paths.tolist()),
        "split": table.split,
        "benchmark": table.benchmark,
    }
    for i, level in enumerate(table.levels):
        columns[level] = table.labels[:, i]
        if table.names:
            named = np.array([*table.names[i], ""], dtype=object)  # UNKNOWN is the last
            columns[f"{level}_name"] = named[np.where(columns[level] == UNKNOWN, -1, columns[level])]
    rows = [images[path] for path in table.paths.tolist()]
    columns |= {field.name: [getattr(row, field.name) for row in rows] for field in fields(CheckedImage)}
    with replacing(folder.path / "table.parquet") as partial:
        pq.write_table(pa.table(columns), partial)
    _journal(folder).unlink(missing_ok=True)
    return folder.path / "table.parquet"


def all_faults(
    table: ImageTable,
    images: Mapping[str, CheckedImage],
    counts: Mapping[str, Mapping[str, int]] | None = None,
    *,
    disjoint: bool = True,
) -> dict[str, list[str]]:
    """What is wrong with a data set: for each kind of fault, a line each.

    Args:
        table: the data set.
        images: what was found of its images.
        counts: the published ones, as `dml.data.table.load` takes them.
        disjoint: whether no class may be in training and test both.
    """
    kinds = {
        "in the lists": [*faults(table, counts, disjoint=disjoint)],
        "missing files": [path for path, image in images.items() if image.error == NO_FILE],
        "images that can't be decoded": [
            f"{path} ({image.error})" for path, image in images.items() if image.error not in ("", NO_FILE)
        ],
        "images in training and in test": [*_shared_contents(table, images)],
    }
    return {kind: lines for kind, lines in kinds.items() if lines}


def _shared_contents(table: ImageTable, images: Mapping[str, CheckedImage]) -> Iterator[str]:
    """Pairs of paths, one used in training and one in test, whose files are the same."""
    training: dict[str, str] = {}
    for path in table.subset(*TRAINING).paths.tolist():
        if images[path].sha256:
            training.setdefault(images[path].sha256, path)
    for path in dict.fromkeys(table.evaluated("test").paths.tolist()):
        if (other := training.get(images[path].sha256)) is not None:
            yield f"{path} is {other}"
