"""Class splits: a CSV file that gives each class to training or test, in place of the data set's own splits.

``dml shift`` writes such files.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.corrections import iterate_rows
from dml.data.table import EVERY_LEVEL, UNKNOWN, ImageTable, compose_name
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
