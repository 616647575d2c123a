"""Parts of a data set: for runs that only show that everything works, and for a quick look at a large data set."""

import numpy as np
from numpy.typing import NDArray

from dml.data.table import EVERY_LEVEL, TEST_SPLITS, ImageTable


def take_some_classes(table: ImageTable, *, classes: int, images: int) -> ImageTable:
    """Return a small table: some classes of each split, evenly spread, and the first images of each class.

    Classes are often numbered by super-class, so the first ones alone might all be of a single super-class.

    Test images, queries and galleries keep the same classes, so that a query still finds its positives. A row that is
    evaluated at one level alone counts by its class of that level.

    Args:
        table: the data set.
        classes: largest number of classes that are kept of train, of val, and of the test splits together.
        images: largest number of images that are kept of each class in each split.
    """
    labels = _labels_of_evaluated_level(table)
    is_kept = np.zeros(len(table), dtype=np.bool_)
    for splits in (("train",), ("val",), TEST_SPLITS):
        for benchmark in range(EVERY_LEVEL, len(table.levels)):
            is_candidate = np.isin(table.split, splits) & (table.benchmark == benchmark)
            present = np.unique(labels[is_candidate])
            count = min(classes, len(present))
            kept_classes = present[np.arange(count) * len(present) // max(count, 1)]
            for split in splits:
                rows = np.flatnonzero(is_candidate & (table.split == split) & np.isin(labels, kept_classes))
                is_kept[rows[_count_before(labels[rows]) < images]] = True
    return table.take(np.flatnonzero(is_kept).astype(np.int64))


def draw_share_of_classes(table: ImageTable, max_images: int | None, seed: int = 0) -> ImageTable:
    """Draw the same share of the images of each class in each split, but at least two, so that queries find positives.

    Args:
        table: the data set.
        max_images: number of images that decides the share, ``max_images / len(table)``. The result has more images if
            many classes have few. None keeps all images.
        seed: seed of the draw.
    """
    if max_images is None or len(table) <= max_images:
        return table
    labels = _labels_of_evaluated_level(table)
    keys = np.stack([np.unique(table.split, return_inverse=True)[1], table.benchmark, labels], axis=1)
    _, groups, sizes = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    groups = groups.reshape(-1)
    order = np.random.default_rng(seed).permutation(len(table))
    is_drawn = np.zeros(len(table), dtype=np.bool_)
    drawn_sizes = np.maximum(2, sizes * max_images // len(table))
    is_drawn[order] = _count_before(groups[order]) < drawn_sizes[groups[order]]
    return table.take(np.flatnonzero(is_drawn).astype(np.int64))


def _labels_of_evaluated_level(table: ImageTable) -> NDArray[np.int64]:
    """Return the label (N,) of each row at the level of its benchmark list; of a row of every level, the finest one."""
    return np.take_along_axis(table.labels, np.maximum(table.benchmark, 0)[:, None], axis=1)[:, 0]


def _count_before(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """labels (N,) -> for each how many equal ones stand before it (N,)."""
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    counts = np.empty(len(labels), dtype=np.int64)
    counts[order] = np.arange(len(labels)) - np.repeat(starts, sizes)
    return counts
