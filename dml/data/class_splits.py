"""Class splits: a CSV file that gives each class to training or test, in place of the data set's own splits.

``dml shift`` writes such files.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.corrections import iterate_rows
from dml.data.table import EVERY_LEVEL, TEST_SPLITS, UNKNOWN, ImageTable, compose_name
from dml.runtime.errors import InputError, suggest
from dml.runtime.paths import expand_home
from dml.runtime.text import format_csv, printable

OPTION = "dataset.class_splits"
COLUMNS = ("class", "split")
SIDES = ("train", "test")
"""The splits that a class can be given; validation classes are drawn from the training classes (``dataset.folds``)."""


def read_class_splits(file: str | Path) -> dict[str, str]:
    """Read the split of each class from a CSV file with the columns ``class`` and ``split``.

    Returns:
        "train" or "test" by the name of the class.

    Raises:
        InputError: if the file can't be read, a column is missing, a split is neither train nor test, a class stands
            there twice, or a split gets no class.
    """
    path = expand_home(file)
    if not path.is_file():
        raise InputError(f"{OPTION}={file}: no such file; give a .csv file that dml shift has written")
    splits: dict[str, str] = {}
    for place, cells in iterate_rows(path, COLUMNS, "give the columns class and split, as dml shift writes them"):
        name, split = cells["class"], cells["split"]
        if split not in SIDES:
            raise InputError(f"{place}: split {printable(split)!r}, expected train or test")
        if name in splits:
            raise InputError(f"{place}: the class {printable(name)!r} stands there a second time")
        splits[name] = split
    for side in SIDES:
        if side not in splits.values():
            raise InputError(f"{OPTION}={file}: no class has the split {side}")
    return splits


def format_class_splits(splits: Mapping[str, str]) -> str:
    """Format a file that `read_class_splits` reads."""
    return format_csv([COLUMNS, *splits.items()])


def apply_class_splits(table: ImageTable, splits: Mapping[str, str]) -> ImageTable:
    """Return a table in which each image is in the split of its class; images without a split stay without.

    Args:
        table: table of the data set.
        splits: "train" or "test" by the name of the finest class, of all classes; without names, by its number.

    Raises:
        InputError: if the images of the table can't be moved, see `name_movable_classes`, a class is unknown, or a
            class has no split.
    """
    labels_by_name = name_movable_classes(table, OPTION)
    level = table.levels[0]
    if unknown := [name for name in splits if name not in labels_by_name]:
        options = suggest(unknown[0], labels_by_name.keys()) if len(unknown[0]) < 100 else ""
        raise InputError(f"{OPTION}: no {level} is called {printable(unknown[0])!r}{printable(options)}")
    if missing := [name for name in labels_by_name if name not in splits]:
        raise InputError(
            f"{OPTION}: {len(missing):,} of {len(labels_by_name):,} classes have no split there, "
            f"such as {printable(missing[0])!r}"
        )
    split_of_label = np.full(table.labels[:, 0].max() + 1, "", dtype="U7")
    for name, label in labels_by_name.items():
        split_of_label[label] = splits[name]
    split = table.split.astype("U7")
    is_in_use = split != ""
    split[is_in_use] = split_of_label[table.labels[is_in_use, 0]]
    return replace(table, split=split)


def name_movable_classes(table: ImageTable, option: str) -> dict[str, int]:
    """Return the labels of the finest classes that are in a split, by name.

    Raises:
        InputError: if the table has queries and a gallery, lists of single levels, or images without a label of the
            finest level, whose split can't be changed by class; or if two classes have the same name.
    """
    table.check_single_labels(option)
    rows = np.flatnonzero(table.split != "")
    if np.isin(table.split[rows], ("query", "gallery")).any():
        raise InputError(f"{option}: the test has queries and a gallery, which can't be divided anew by class")
    if (table.benchmark[rows] != EVERY_LEVEL).any() or (table.labels[rows, 0] == UNKNOWN).any():
        raise InputError(f"{option}: the test has a list for each level, which can't be divided anew by class")
    labels: NDArray[np.int64] = np.unique(table.labels[rows, 0])
    labels_by_name: dict[str, int] = {}
    for label in labels.tolist():
        name = compose_name(table.name_class(label).strip())
        if name in labels_by_name:
            raise InputError(f"{option}: two classes are called {printable(name)!r}; give them names of their own")
        labels_by_name[name] = label
    return labels_by_name


def take_some_classes(table: ImageTable, *, classes: int, images: int) -> ImageTable:
    """Return a small table: some classes of each split, evenly spread, and the first images of each class.

    Classes are often numbered by super-class, so the first ones alone might all be of a single super-class.

    Test images, queries and galleries keep the same classes, so that a query still finds its positives. A row that is
    evaluated at one level alone counts by its class of that level.

    At most ``classes`` of each data set and benchmark list are kept of train, of val, and of the test splits together.
    """
    labels_by_level = table.separate_unlabeled().labels.T
    is_kept = np.zeros(len(table), dtype=np.bool_)
    for splits, domain in product((("train",), ("val",), TEST_SPLITS), table.domains):
        is_candidate = np.isin(table.split, splits) & (table.domain == domain)
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
    """Draw the same share of the images of each class in each split, but at least two, so that queries find positives.

    The share is ``max_images / len(table)``, and None keeps all images. The result has more images than that if many
    classes have few.
    """
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
