"""Image files of the same content: queries in their gallery, copies between splits; small pictures to compare."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dml.data.image_files.contents import MISSING, hash_content, read_sizes, read_stamps
from dml.data.image_files.images import LIMITS, read_image
from dml.data.image_files.limits import ImageLimits
from dml.data.image_files.parts import split_part
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.verification import CheckedImage, find_copies, read_verified
from dml.data.split_names import SPLITS
from dml.data.table import EVERY_LEVEL, TEST_SPLITS, TRAINING_SPLITS, UNKNOWN, ImageTable, find_equal
from dml.runtime.text import format_count, printable

EXCLUDE_COPIES = "dataset.queries_in_gallery=true excludes each copy from the ranking of its query"
SAMPLED_QUERIES = 64
"""The number of queries that `warn_of_copies` compares with the gallery, so that it takes a moment."""
SIDE = 32
"""Height and width of the small pictures by which near duplicates are found."""

logger = logging.getLogger(__name__)


def assign_content_ids(table: ImageTable, folder: CacheFolder | None, limits: ImageLimits = LIMITS) -> ImageTable:
    """Fill in the column ``content`` of a table: images of the same content in query and gallery share a number.

    Only files that have the size of some query image are compared, by the SHA-256 of their content; all others are
    `UNKNOWN`. That of a file whose size and time are unchanged is taken from the verification by ``dml prepare`` in the
    folder, if there is one. Files that are missing or can't be read get no number; decoding them raises the error.
    """
    rows = table.rows("query", "gallery")
    paths = [split_part(path)[0] for path in table.paths[rows].tolist()]
    sizes = np.array(read_sizes(paths), dtype=np.int64)
    query_sizes = np.setdiff1d(sizes[table.split[rows] == "query"], MISSING[0])
    candidates = np.flatnonzero(np.isin(sizes, query_sizes)).tolist()
    files = [paths[i] for i in candidates]
    verified = read_verified(folder) if folder else {}
    known = {(name, *image.stamp): image.sha256 for name, image in verified.items()}
    names = folder.relative_paths(files) if folder else files
    content_ids: dict[str, int] = {}
    content = table.content.copy()
    content[rows] = UNKNOWN
    for row, path, name, stamp in zip(rows[candidates], files, names, read_stamps(files).tolist(), strict=True):
        if sha256 := known.get((name, *stamp)) or hash_content(path, limits.max_image_bytes):
            content[row] = content_ids.setdefault(sha256, len(content_ids))
    return replace(table, content=content)


def count_queries_in_gallery(table: ImageTable) -> tuple[int, int]:
    """Count the query images that are in the gallery of their list too, and all query images, by ``content``."""
    queries, gallery = table.rows("query"), table.rows("gallery")
    pairs = find_equal(table.content[queries], table.content[gallery])
    lists, gallery_lists = table.benchmark[queries[pairs[:, 0]]], table.benchmark[gallery[pairs[:, 1]]]
    is_in_list = (lists == gallery_lists) | (lists == EVERY_LEVEL) | (gallery_lists == EVERY_LEVEL)
    return len(np.unique(pairs[is_in_list, 0])), len(queries)


def warn_of_copies(table: ImageTable, limits: ImageLimits = LIMITS, queries: int = SAMPLED_QUERIES) -> None:
    """Warn if the gallery holds copies of some query images, which are then nearest to their queries."""
    rows = np.flatnonzero((table.split == "query") & (table.content == UNKNOWN))  # others exclude their copies
    sampled = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), queries)).astype(np.int64))]
    compared = table.take(np.concatenate([sampled, table.rows("gallery")]))
    in_gallery, count = count_queries_in_gallery(assign_content_ids(compared, None, limits))
    if in_gallery:
        compared_queries = "queries" if count == len(rows) else f"queries that were compared, of {len(rows):,},"
        logger.warning(
            "%s of %s %s are in their gallery as files of the same content, and find themselves; %s",
            *(f"{in_gallery:,}", f"{count:,}", compared_queries, EXCLUDE_COPIES),
        )


def describe_copies(table: ImageTable, images: Mapping[str, CheckedImage]) -> Iterator[str]:
    """Yield a line for each pair of splits with files of the same content, and one about copies of two classes."""
    for first, second in combinations([split for split in SPLITS if len(table.rows(split))], 2):
        is_compared, advice = table.split == first, ""
        if (first, second) == ("query", "gallery"):
            is_compared &= table.content == UNKNOWN  # others exclude their copies
            advice = f"; {EXCLUDE_COPIES}"
        elif first in TRAINING_SPLITS and second in TEST_SPLITS:
            advice = "; the test then flatters what the training has seen"
        if shared := find_copies(table.take(np.flatnonzero(is_compared)), table.subset(second), images):
            example = " is ".join(map(printable, next(iter(shared.items()))))
            finding = f"{format_count(len(shared), 'file')} in {second} with the content of a file in {first}"
            yield f"{finding}, such as {example}{advice}"
    labels_by_content: dict[str, set[int]] = {}
    for path, label in zip(table.paths.tolist(), table.labels[:, 0].tolist(), strict=True):
        if images[path].sha256 and label != UNKNOWN:
            labels_by_content.setdefault(images[path].sha256, set()).add(label)
    if doubtful := [path for path in images if len(labels_by_content.get(images[path].sha256, ())) > 1]:
        files = format_count(len(doubtful), "file")
        yield f"{files} with the content of a file of another class, such as {printable(doubtful[0])}"


def read_small_pictures(paths: Sequence[str], advance: Callable[[int], None], limits: ImageLimits = LIMITS) -> Tensor:
    """Read images, and scale each to a square of 32 x 32 gray values, whatever its proportions -> (N, 32, 32)."""

    def read(path: str) -> NDArray[np.float32]:
        pixels = read_image(path, limits).permute(1, 2, 0)
        picture = Image.fromarray(pixels.numpy()).convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.array(picture, dtype=np.float32)

    pictures = torch.empty(len(paths), SIDE, SIDE)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for row, picture in enumerate(threads.map(read, paths)):
            pictures[row] = torch.from_numpy(picture)
            advance(1)
    return pictures
