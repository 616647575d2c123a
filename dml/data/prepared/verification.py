"""Verification of a data set: each image file is read and decoded once, and the results are stored with the data set.

``table.parquet`` is the table of the data set with the result for each image, and ``verified.parquet`` holds those of a
verification that hasn't ended yet, as of a minute ago or less. An image whose file is unchanged isn't read again.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml.data.contents import Stamp, hash_content, read_stamps
from dml.data.images import LIMITS, ImageFile, ImageLimits, MissingImageError, UnreadableImageError
from dml.data.prepared.cache import CacheFolder, refuse_links
from dml.data.table import TRAINING_SPLITS, UNKNOWN, ImageTable, find_faults
from dml.data.worker_processes import run_in_processes
from dml.runtime.files import replacing
from dml.runtime.text import printable

CHUNK = 64
"""Number of images that a process reads at a time."""
WRITE_EVERY = 60.0
"""Seconds between two writes of the results that there are."""
TABLE, UNFINISHED = "table.parquet", "verified.parquet"
NO_FILE = "no such file"
"""The ``error`` of a `CheckedImage` whose file is missing."""

Warn = Callable[[str], None]
"""A function that is called with the line of a warning."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """The result of reading and decoding an image file: its `Stamp` and upright size in pixels, 0 if it can't be read.

    ``sha256`` is of the content, and of the box of a part; ``error`` is the reason why the image can't be read, or "".
    """

    bytes: int
    mtime_ns: int
    inode: int
    ctime_ns: int
    height: int
    width: int
    sha256: str
    error: str

    @property
    def stamp(self) -> Stamp:
        """The stamp of the file."""
        return self.bytes, self.mtime_ns, self.inode, self.ctime_ns


_TYPES = map({int: pa.int64(), str: pa.string()}.get, CheckedImage.__annotations__.values())
RESULTS = pa.schema(dict(zip(CheckedImage.__annotations__, _TYPES, strict=True)))


def check_images(
    table: ImageTable,
    folder: CacheFolder,
    *,
    processes: int | None,
    advance: Callable[[int], None],
    compare_contents: bool = False,
    warn: Warn = logger.warning,
    limits: ImageLimits = LIMITS,
) -> dict[str, CheckedImage]:
    """Read and decode each image of a table, unless an earlier verification has read the same file -> results by path.

    The folder must exist, and no other process may prepare the data set. With ``compare_contents`` a file of unchanged
    stamp is read too, as is one whose inode or time of the change alone is another, and decoded if its SHA-256 differs.
    ``advance`` is called with a number of images whenever so many more are done, and ``warn`` with a line for each
    damaged file, and about images whose content has changed while size and time stayed the same.
    """
    paths = [*dict.fromkeys(table.paths.tolist())]
    names = dict(zip(paths, folder.relative_paths(paths), strict=True))
    stamps: dict[str, Stamp] = dict(zip(paths, map(tuple, read_stamps(paths).tolist()), strict=True))
    stored = read_verified(folder, warn)
    earlier = {
        path: image
        for path, name in names.items()
        if (image := stored.get(name)) and not image.error and image.stamp[:2] == stamps[path][:2]
    }
    unchanged = {path: image for path, image in earlier.items() if image.stamp == stamps[path]}
    results = {} if compare_contents else unchanged
    advance(len(results))
    remaining = [(path, stamps[path], earlier.get(path)) for path in paths if path not in results]
    chunks = [remaining[i : i + CHUNK] for i in range(0, len(remaining), CHUNK)]
    written = monotonic()
    for chunk_results in run_in_processes(functools.partial(_check_chunk, limits), chunks, processes):
        results |= chunk_results
        if monotonic() - written >= WRITE_EVERY or len(results) == len(paths):
            stored |= {names[path]: image for path, image in results.items()}
            _write_unfinished(folder, stored)
            written = monotonic()
        advance(len(chunk_results))
    if replaced := [path for path in earlier if results[path].sha256 != earlier[path].sha256]:
        first = printable(replaced[0])
        warn(f"{len(replaced):,} images have another content, of the same size and time, such as {first}")
    return {path: results[path] for path in paths}


def _check_chunk(
    limits: ImageLimits, images: Sequence[tuple[str, Stamp, CheckedImage | None]]
) -> dict[str, CheckedImage]:
    results = {}
    for path, stamp, earlier in images:
        is_same = earlier is not None and hash_content(path, limits.max_image_bytes) == earlier.sha256
        checked = earlier if earlier and is_same else _check_image(path, stamp, limits)
        results[path] = replace(checked, inode=stamp[2], ctime_ns=stamp[3])
    return results


def _check_image(path: str, stamp: Stamp, limits: ImageLimits) -> CheckedImage:
    try:
        file = ImageFile(path, limits)
        file.pixels()
    except MissingImageError:
        return CheckedImage(*stamp, 0, 0, "", NO_FILE)
    except UnreadableImageError as error:
        return CheckedImage(*stamp, 0, 0, "", printable(error.reason)[:120])
    return CheckedImage(*stamp, *file.size, hash_content(path, content=file.content), "")


def read_verified(folder: CacheFolder, warn: Warn = logger.warning) -> dict[str, CheckedImage]:
    """Read the results of the last verification and of a later, unfinished one, by path relative to the root."""
    refuse_links(folder.path)
    verified: dict[str, CheckedImage] = {}
    for path in (folder.path / TABLE, folder.path / UNFINISHED):
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read(["path", *RESULTS.names])
            columns = table.select(RESULTS.names).cast(RESULTS).to_pydict()
            images = map(CheckedImage, *columns.values())
            verified |= zip(table["path"].to_pylist(), images, strict=True)
        except FileNotFoundError:
            continue
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            warn(f"{path}: is damaged, or of another version ({type(error).__name__}); its images are read again")
    return verified


def _write_unfinished(folder: CacheFolder, images: Mapping[str, CheckedImage]) -> None:
    _write_parquet(folder.path / UNFINISHED, {"path": [*images]}, [*images.values()])


def write_table(folder: CacheFolder, table: ImageTable, images: Mapping[str, CheckedImage]) -> Path:
    """Write ``table.parquet``, with the relative path, the split, the labels and the result of each image."""
    columns: dict[str, Any] = {
        "path": folder.relative_paths(table.paths.tolist()),
        "split": table.split,
        "benchmark": table.benchmark,
    }
    for i, level in enumerate(table.levels):
        columns[level] = table.labels[:, i]
        if table.names:
            class_names = np.array([*table.names[i], ""], dtype=object)  # the last name is that of UNKNOWN
            columns[f"{level}_name"] = class_names[np.where(columns[level] == UNKNOWN, -1, columns[level])]
    _write_parquet(folder.path / TABLE, columns, [images[path] for path in table.paths.tolist()])
    (folder.path / UNFINISHED).unlink(missing_ok=True)
    return folder.path / TABLE


def _write_parquet(path: Path, columns: Mapping[str, Any], images: Sequence[CheckedImage]) -> None:
    results = {name: [getattr(image, name) for image in images] for name in RESULTS.names}
    with replacing(path) as partial:
        pq.write_table(pa.table({**columns, **results}), partial, write_page_checksum=True)


def list_faults(
    table: ImageTable,
    images: Mapping[str, CheckedImage],
    counts: Mapping[str, Mapping[str, int]] | None = None,
    *,
    disjoint: bool = True,
) -> dict[str, list[str]]:
    """List everything that is wrong with a data set: a line for each fault, by the kind of fault."""
    unreadable = {path: image.error for path, image in images.items() if image.error not in ("", NO_FILE)}
    shared = find_copies(table.subset(*TRAINING_SPLITS), table.select_evaluated("test"), images)
    kinds = {
        ("in the lists", "in the lists"): [*find_faults(table, counts, disjoint=disjoint)],
        ("missing file", "missing files"): [
            printable(path) for path, image in images.items() if image.error == NO_FILE
        ],
        ("image that can't be decoded", "images that can't be decoded"): [
            f"{printable(path)} ({error})" for path, error in unreadable.items()
        ],
        ("image in training and in test", "images in training and in test"): [
            f"{printable(path)} is {printable(training_path)}" for path, training_path in shared.items()
        ],
    }
    return {singular if len(lines) == 1 else plural: lines for (singular, plural), lines in kinds.items() if lines}


def find_copies(first: ImageTable, second: ImageTable, images: Mapping[str, CheckedImage]) -> dict[str, str]:
    """Return the images of the second table with the content of one of the first -> the first such one by its copy."""
    paths = {images[path].sha256: path for path in reversed(first.paths.tolist())}
    paths.pop("", None)  # the SHA-256 of files that can't be read
    return {path: paths[images[path].sha256] for path in second.paths.tolist() if images[path].sha256 in paths}
