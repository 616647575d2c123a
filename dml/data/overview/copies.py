"""Query images that are in their gallery too, as files of the same content under other names."""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dml.data.image_files.contents import MISSING, UNREADABLE, Stamp, read_content, read_sizes, read_stamps
from dml.data.image_files.images import LIMITS
from dml.data.image_files.limits import ImageLimits
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.prepared_files import UnfitFileError, delete_file, read_parquet, refuse_links, write_parquet
from dml.data.prepared.verification import read_verified
from dml.data.table import EVERY_LEVEL, UNKNOWN, ImageTable

HASHES_FILE = "digests.parquet"
"""The file of a data set's cache folder that holds the SHA-256 of image files."""

EXCLUDE_COPIES = "dataset.queries_in_gallery=true excludes each copy from the ranking of its query"
SAMPLED_QUERIES = 64
"""The number of queries that `warn_of_copies` compares with the gallery, so that it takes a moment."""

logger = logging.getLogger(__name__)

ContentHashes = dict[str, tuple[Stamp, str]]
"""The stamp and the SHA-256 of each file, by its path relative to the root of the data set."""


def assign_content_ids(table: ImageTable, folder: CacheFolder | None, limits: ImageLimits = LIMITS) -> ImageTable:
    """Fill in the column ``content`` of a table: images of the same content in query and gallery share a number.

    Only files that have the size of some query image are compared, by the SHA-256 of their content. The SHA-256 of a
    file whose size and time are unchanged is taken from the verification by ``dml prepare``, or from
    ``digests.parquet``, which an earlier call wrote. Files that are missing or can't be read get no number; decoding
    them raises the error.

    Args:
        table: the table of the data set.
        folder: folder that the SHA-256 of the files are written to. With None, or with a folder that can't be written
            to, the next call computes them again.
        limits: largest size of an image file.

    Returns:
        The table with the column ``content``; it is `UNKNOWN` for images that aren't compared.

    Raises:
        InputError: if there are links in the folder.
    """
    if folder is not None:
        refuse_links(folder.path)
    rows = table.rows("query", "gallery")
    paths = table.paths[rows].tolist()
    is_query = table.split[rows] == "query"
    sizes = read_sizes(paths)
    query_sizes = {size for size, query in zip(sizes, is_query, strict=True) if query} - {MISSING[0]}
    candidates = [i for i, size in enumerate(sizes) if size in query_sizes]
    compared = [paths[i] for i in candidates]
    stamps = [(size, time) for size, time in read_stamps(compared).tolist()]
    hashes = _find_hashes(compared, stamps, folder, limits.max_image_bytes)
    content_ids: dict[str, int] = {}
    content = np.full(len(table), UNKNOWN, dtype=np.int64)
    for i in candidates:
        if content_hash := hashes[paths[i]]:
            content[rows[i]] = content_ids.setdefault(content_hash, len(content_ids))
    return replace(table, content=content)


def count_queries_in_gallery(table: ImageTable) -> tuple[int, int]:
    """Count the query images that are in the gallery of their benchmark list too.

    Args:
        table: a table with the column ``content``, see `assign_content_ids`.

    Returns:
        The number of query images in their gallery, and the number of all query images.
    """
    queries = table.rows("query")
    count = 0
    for level in np.unique(table.benchmark[queries]).tolist():
        list_queries = queries[table.benchmark[queries] == level]
        gallery = table.rows("gallery")
        if level != EVERY_LEVEL:
            gallery = gallery[np.isin(table.benchmark[gallery], (EVERY_LEVEL, level))]
        gallery_contents = np.setdiff1d(table.content[gallery], UNKNOWN)
        count += int(np.isin(table.content[list_queries], gallery_contents).sum())
    return count, len(queries)


def warn_of_copies(table: ImageTable, limits: ImageLimits = LIMITS, queries: int = SAMPLED_QUERIES) -> None:
    """Warn if the gallery holds copies of query images, each of which is then the nearest neighbor of its query.

    Args:
        table: the table of the data set.
        limits: largest size of an image file.
        queries: number of query images that are compared with the gallery, evenly spaced; the size of each file of the
            gallery is read too, and the content of those that have the size of such a query.
    """
    rows = table.rows("query")
    sampled = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), queries)).astype(np.int64))]
    compared = table.take(np.concatenate([sampled, table.rows("gallery")]))
    in_gallery, count = count_queries_in_gallery(assign_content_ids(compared, None, limits))
    if in_gallery:
        compared_queries = "queries" if count == len(rows) else f"queries that were compared, of {len(rows):,},"
        logger.warning(
            "%s of %s %s are in their gallery as files of the same content, and find themselves; %s",
            *(f"{in_gallery:,}", f"{count:,}", compared_queries, EXCLUDE_COPIES),
        )


def _find_hashes(
    paths: Sequence[str], stamps: Sequence[Stamp], folder: CacheFolder | None, max_bytes: int
) -> dict[str, str]:
    """Return the SHA-256 of each file by its path, stored or computed; an empty string for one that can't be read."""
    if folder is None:
        return {path: _compute_hash(path, max_bytes) for path in paths}
    names = folder.relative_paths(paths)
    stored = _read_hashes(folder)
    if any(_stored_stamp(stored, name) != stamp for name, stamp in zip(names, stamps, strict=True)):
        verified = {name: image for name, image in read_verified(folder).items() if image.sha256}
        stored |= {name: ((image.bytes, image.mtime_ns), image.sha256) for name, image in verified.items()}
        stored = {
            name: stored[name] if _stored_stamp(stored, name) == stamp else (stamp, _compute_hash(path, max_bytes))
            for name, path, stamp in zip(names, paths, stamps, strict=True)
        }
        _write_hashes(folder, {name: entry for name, entry in stored.items() if entry[1]})
    return {path: stored[name][1] for name, path in zip(names, paths, strict=True)}


def _stored_stamp(hashes: ContentHashes, name: str) -> Stamp | None:
    return hashes[name][0] if name in hashes else None


def _compute_hash(path: str, max_bytes: int) -> str:
    try:
        return hashlib.sha256(read_content(path, max_bytes)).hexdigest()
    except UNREADABLE:
        return ""


def delete_content_hashes(folder: CacheFolder) -> None:
    """Delete the file in which earlier calls of `assign_content_ids` stored the SHA-256 of images."""
    refuse_links(folder.path)
    delete_file(folder.path / HASHES_FILE)


def _read_hashes(folder: CacheFolder) -> ContentHashes:
    try:
        columns = read_parquet(folder.path / HASHES_FILE, ["path", "bytes", "mtime_ns", "sha256"]).to_pydict()
    except FileNotFoundError:
        return {}
    except UnfitFileError as error:
        logger.warning("%s; the contents of images are read again", error)
        return {}
    return {name: ((size, time), sha256) for name, size, time, sha256 in zip(*columns.values(), strict=True)}


def _write_hashes(folder: CacheFolder, hashes: ContentHashes) -> None:
    columns = {
        "path": pa.array(hashes, pa.string()),
        "bytes": pa.array([stamp[0] for stamp, _ in hashes.values()], pa.int64()),
        "mtime_ns": pa.array([stamp[1] for stamp, _ in hashes.values()], pa.int64()),
        "sha256": pa.array([sha256 for _, sha256 in hashes.values()], pa.string()),
    }
    with suppress(OSError):  # if the data set's folder is read-only, the next run computes the SHA-256 again
        folder.path.mkdir(parents=True, exist_ok=True)
        write_parquet(folder.path / HASHES_FILE, pa.table(columns))
