"""Verification of a data set: each image file is read and decoded once, and the results are stored with the data set.

``table.parquet`` is the table of the data set with the result for each image. ``verified.jsonl`` is the journal, which
holds the results of a verification that hasn't ended yet. An image whose file is unchanged isn't read again. Both files
have checksums, and an image whose result is damaged is read again.
"""

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.image_files.contents import Stamp, hash_content, read_stamps
from dml.data.image_files.images import LIMITS, ImageFile, MissingImageError, UnreadableImageError
from dml.data.image_files.limits import ImageLimits
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.prepared_files import (
    Warn,
    checksummed_line,
    delete_file,
    open_file,
    read_lines,
    read_parquet_if_fit,
    refuse_links,
    replacing_file,
    write_parquet,
)
from dml.data.table import TRAINING_SPLITS, UNKNOWN, ImageTable, find_faults
from dml.data.worker_processes import run_in_processes
from dml.runtime.text import printable

CHUNK = 64
"""Number of images that are read between two lines of the journal."""
NO_FILE = "no such file"
"""The ``error`` of a `CheckedImage` whose file is missing."""

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
    stamps: dict[str, Stamp] = dict(zip(paths, map(tuple, read_stamps(paths).tolist()), strict=True))
    earlier = _read_earlier(stamps, folder, warn)
    unchanged = {path: image for path, image in earlier.items() if image.stamp == stamps[path]}
    results = {} if compare_contents else unchanged
    advance(len(results))
    remaining = [(path, stamp, earlier.get(path)) for path, stamp in stamps.items() if path not in results]
    chunks = [remaining[i : i + CHUNK] for i in range(0, len(remaining), CHUNK)]
    with open_file(_journal_path(folder), os.O_WRONLY | os.O_APPEND) as journal:
        for chunk_results in run_in_processes(functools.partial(_check_chunk, limits), chunks, processes):
            names = folder.relative_paths([*chunk_results])
            entries = {name: asdict(image) for name, image in zip(names, chunk_results.values(), strict=True)}
            journal.write(checksummed_line(entries).encode())
            journal.flush()
            results |= chunk_results
            advance(len(chunk_results))
    if replaced := [path for path in earlier if results[path].sha256 != earlier[path].sha256]:
        first = printable(replaced[0])
        warn(f"{len(replaced):,} images have another content, of the same size and time, such as {first}")
    return {path: results[path] for path in paths}


def _read_earlier(stamps: Mapping[str, Stamp], folder: CacheFolder, warn: Warn) -> dict[str, CheckedImage]:
    """Return the earlier results for images that could be read and whose files still have the same size and time."""
    refuse_links(folder.path)
    in_table, in_journal = _read_table(folder, warn), _read_journal(folder, warn)
    # The journal is written anew without damaged lines, as a file that has no second name.
    with replacing_file(_journal_path(folder)) as partial:
        entries = [(name, asdict(image)) for name, image in in_journal.items()]
        lines = [checksummed_line(dict(entries[i : i + CHUNK])) for i in range(0, len(entries), CHUNK)]
        partial.write_text("".join(lines), encoding="utf-8")
    verified = in_table | in_journal
    earlier = {}
    for (path, stamp), name in zip(stamps.items(), folder.relative_paths([*stamps]), strict=True):
        image = verified.get(name)
        if image and not image.error and image.stamp[:2] == stamp[:2]:
            earlier[path] = image
    return earlier


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


def _journal_path(folder: CacheFolder) -> Path:
    return folder.path / "verified.jsonl"


def read_verified(folder: CacheFolder) -> dict[str, CheckedImage]:
    """Read the results of the last verification and of a later, unfinished one, by path relative to the root."""
    refuse_links(folder.path)
    return _read_table(folder, logger.warning) | _read_journal(folder, logger.warning)


def _read_table(folder: CacheFolder, warn: Warn) -> dict[str, CheckedImage]:
    names = ["path", *(field.name for field in fields(CheckedImage))]
    table = read_parquet_if_fit(folder.path / "table.parquet", warn, "read again", names)
    columns = table.to_pydict().values() if table else ()
    return {name: CheckedImage(*result) for name, *result in zip(*columns, strict=True)}


def _read_journal(folder: CacheFolder, warn: Warn) -> dict[str, CheckedImage]:
    lines = read_lines(_journal_path(folder), warn, "read again")
    return {name: CheckedImage(**entry) for entries in lines for name, entry in entries.items()}


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
    results = [images[path] for path in table.paths.tolist()]
    columns |= {field.name: [getattr(result, field.name) for result in results] for field in fields(CheckedImage)}
    write_parquet(folder.path / "table.parquet", pa.table(columns))
    delete_file(_journal_path(folder))
    return folder.path / "table.parquet"


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
