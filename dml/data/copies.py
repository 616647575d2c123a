"""Which query images are in their gallery too, as files of the same content under other names."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml.data.cache import CacheFolder
from dml.data.contents import MISSING, content_of, stamps_of
from dml.data.prepare import read_verified
from dml.data.table import EVERY_LEVEL, UNKNOWN, ImageTable

STORE = "digests.parquet"

Stamp = tuple[int, int]
Digests = dict[str, tuple[Stamp, str]]
"""The stamp and the SHA-256 of files, by their names in the data set's cache folder."""


def number_contents(table: ImageTable, folder: CacheFolder | None) -> ImageTable:
    """The table with its `content` filled in for query and gallery images that may be the same.

    Files of different sizes differ. Of the others the content is compared by SHA-256, which is read only once: it is
    taken from what ``scripts/prepare.py`` found, or from an earlier call's ``digests.parquet``, where the file's size
    and time are unchanged. Files that are missing are left alone: whoever reads them says so.

    Args:
        table: the data set.
        folder: where digests are kept; None, or a folder that can't be written to, keeps none.
    """
    rows = table.rows("query", "gallery")
    paths = table.paths[rows].tolist()
    stamps = [(size, time) for size, time in stamps_of(paths).tolist()]
    of_query = {stamp[0] for stamp, row in zip(stamps, rows, strict=True) if table.split[row] == "query"} - {MISSING[0]}
    candidates = [place for place, stamp in enumerate(stamps) if stamp[0] in of_query]
    digests = _digests([paths[place] for place in candidates], [stamps[place] for place in candidates], folder)
    numbers: dict[str, int] = {}
    content = np.full(len(table), UNKNOWN, dtype=np.int64)
    for place in candidates:
        content[rows[place]] = numbers.setdefault(digests[paths[place]], len(numbers))
    return replace(table, content=content)


def number_in_gallery(table: ImageTable) -> tuple[int, int]:
    """How many query images are in the gallery of their list too, and how many there are. -> (found, queries)"""
    queries = table.rows("query")
    found = 0
    for level in np.unique(table.benchmark[queries]).tolist():
        inside = queries[table.benchmark[queries] == level]
        gallery = table.rows("gallery")
        if level != EVERY_LEVEL:
            gallery = gallery[np.isin(table.benchmark[gallery], (EVERY_LEVEL, level))]
        known = np.setdiff1d(table.content[gallery], UNKNOWN)
        found += int(np.isin(table.content[inside], known).sum())
    return found, len(queries)


def _digests(paths: Sequence[str], stamps: Sequence[Stamp], folder: CacheFolder | None) -> dict[str, str]:
    """The SHA-256 of each file, by its path."""
    if folder is None:
        return {path: _digest(path) for path in paths}
    names = folder.names(paths)
    stored = _stored_digests(folder)
    if any(_key(stored, name) != stamp for name, stamp in zip(names, stamps, strict=True)):
        verified = {name: image for name, image in read_verified(folder).items() if image.sha256}
        stored |= {name: ((image.bytes, image.mtime_ns), image.sha256) for name, image in verified.items()}
        stored = {
            name: stored[name] if _key(stored, name) == stamp else (stamp, _digest(path))
            for name, path, stamp in zip(names, paths, stamps, strict=True)
        }
        _write(folder, stored)
    return {path: stored[name][1] for name, path in zip(names, paths, strict=True)}


def _key(digests: Digests, name: str) -> Stamp | None:
    return digests[name][0] if name in digests else None


def _digest(path: str) -> str:
    return hashlib.sha256(content_of(path)).hexdigest()


def _stored_digests(folder: CacheFolder) -> Digests:
    if not (path := folder.path / STORE).exists():
        return {}
    columns = pq.read_table(path).to_pydict()
    rows = zip(*(columns[name] for name in ("path", "bytes", "mtime_ns", "sha256")), strict=True)
    return {name: ((size, time), digest) for name, size, time, digest in rows}


def _write(folder: CacheFolder, digests: Digests) -> None:
    columns = {
        "path": pa.array(digests, pa.string()),
        "bytes": pa.array([stamp[0] for stamp, _ in digests.values()], pa.int64()),
        "mtime_ns": pa.array([stamp[1] for stamp, _ in digests.values()], pa.int64()),
        "sha256": pa.array([digest for _, digest in digests.values()], pa.string()),
    }
    partial = folder.path / f".{STORE}.{os.getpid()}.partial"  # the processes of a run may write at once
    with suppress(OSError):  # where the data set may only be read, the next run reads its files again
        folder.path.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), partial)
        partial.replace(folder.path / STORE)
