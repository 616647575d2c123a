"""Parts of a table with fewer images: some classes of each split, or a share of every class."""

import numpy as np
from numpy.typing import NDArray

from dml.data.table import EVERY_LEVEL, TEST_SPLITS, ImageTable


def take_some_classes(table: ImageTable, *, classes: int, images: int) -> ImageTable:
    """Return a small table: some classes of each split, evenly spread, and the first images of each class.

    Classes are often numbered by super-class, so the first ones alone might all be of a single super-class. Test
    images, queries and galleries keep the same classes, so that a query still finds its positives. A row that is
    evaluated at one level alone counts by its class of that level.
    """
    labels_by_level = table.labels.T
    is_kept = np.zeros(len(table), dtype=np.bool_)
    for splits in (("train",), ("val",), TEST_SPLITS):
        is_candidate = np.isin(table.split, splits)
        for level in {*table.benchmark[is_candidate].tolist()} - {EVERY_LEVEL} or {EVERY_LEVEL}:
            labels, in_list = labels_by_level[max(level, 0)], np.isin(table.benchmark, (EVERY_LEVEL, level))
            present = np.unique(labels[is_candidate & in_list])
            count = min(classes, len(present))
            kept_classes = present[np.arange(count) * len(present) // max(count, 1)]
            for split in splits:
                is_kept_class = is_candidate & in_list & (table.split == split) & np.isin(labels, kept_classes)
                rows = np.flatnonzero(is_kept_class)
                is_kept[rows[_count_before(labels[rows]) < images]] = True
    return table.take(np.flatnonzero(is_kept).astype(np.int64))


def draw_share_of_classes(table: ImageTable, max_images: int | None, seed: int = 0) -> ImageTable:
    """Draw the share ``max_images / len(table)`` of each class in each split, but at least two images."""
    if max_images is None or len(table) <= max_images:
        return table
    split = np.unique(table.split, return_inverse=True)[1]
    keys = np.column_stack([split, table.benchmark, table.labels])
    _, groups, sizes = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    groups = groups.reshape(-1)
    order = np.random.default_rng(seed).permutation(len(table))
    is_drawn = np.zeros(len(table), dtype=np.bool_)
    drawn_sizes = np.maximum(2, sizes * max_images // len(table))
    is_drawn[order] = _count_before(groups[order]) < drawn_sizes[groups[order]]
    return table.take(np.flatnonzero(is_drawn).astype(np.int64))


def _count_before(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """labels (N,) -> for each how many equal ones stand before it (N,)."""
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    counts = np.empty(len(labels), dtype=np.int64)
    counts[order] = np.arange(len(labels)) - np.repeat(starts, sizes)
    return counts
