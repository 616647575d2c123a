"""Small parts of a data set, for runs that only show that everything works."""

import numpy as np
from numpy.typing import NDArray

from dml.data.table import EVERY_LEVEL, TEST_SPLITS, ImageTable


def take_first_classes(table: ImageTable, *, classes: int, images: int) -> ImageTable:
    """Return a small table: the first classes of each split, and the first images of each class.

    Test images, queries and galleries keep the same classes, so that a query still finds its positives. A row that is
    evaluated at one level alone counts by its class of that level.

    Args:
        table: the data set.
        classes: largest number of classes that are kept of train, of val, and of the test splits together.
        images: largest number of images that are kept of each class in each split.
    """
    level = np.maximum(table.benchmark, 0)
    labels = np.take_along_axis(table.labels, level[:, None], axis=1)[:, 0]
    is_kept = np.zeros(len(table), dtype=np.bool_)
    for splits in (("train",), ("val",), TEST_SPLITS):
        for benchmark in range(EVERY_LEVEL, len(table.levels)):
            is_candidate = np.isin(table.split, splits) & (table.benchmark == benchmark)
            first_classes = np.unique(labels[is_candidate])[:classes]
            for split in splits:
                rows = np.flatnonzero(is_candidate & (table.split == split) & np.isin(labels, first_classes))
                is_kept[rows[_count_before(labels[rows]) < images]] = True
    return table.take(np.flatnonzero(is_kept).astype(np.int64))


def _count_before(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """labels (N,) -> for each how many equal ones stand before it (N,)."""
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    counts = np.empty(len(labels), dtype=np.int64)
    counts[order] = np.arange(len(labels)) - np.repeat(starts, sizes)
    return counts
