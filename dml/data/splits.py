"""What the readers of a user's own data share: classes numbered by their names, and splits drawn by class."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dml.data.table import ImageTable
from dml.ops.errors import InputError


def numbered(names: Iterable[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class names (N,) -> labels (N,) in the sorted names' order, and these: the same on every machine."""
    classes, labels = np.unique(np.array([*names], dtype=np.str_), return_inverse=True)
    return labels.astype(np.int64), tuple(classes.tolist())


def complete_splits(table: ImageTable, *, test_fraction: float, val_fraction: float, seed: int) -> ImageTable:
    """Draws the splits that a table of one's own lacks; no class of level 0 is in two of those that are drawn.

    Args:
        table: with splits of its own, or with an empty string in every row.
        test_fraction: of the classes, if the table has no split at all.
        val_fraction: of the training classes, if there is no ``val``; 0 draws none.
        seed: of the draws, which depend on nothing else but the labels that there are.

    Raises:
        InputError: if there are too few classes, a fraction isn't one, or a table's own splits can't be trained and
            tested on.
    """
    split = table.split.astype("U7")
    if not (split != "").any():
        split[:] = "train"
        split[_drawn(table, split, "test_fraction", test_fraction, seed)] = "test"
    present = {*np.unique(split).tolist()}
    if not ("train" in present and ("test" in present or {"query", "gallery"} <= present)):
        raise InputError(
            f"{table.source}: has the splits {', '.join(sorted(present))}; "
            "train and test are needed, or train, query and gallery"
        )
    if val_fraction and "val" not in present:
        split[_drawn(table, split, "val_fraction", val_fraction, seed)] = "val"
    return replace(table, split=split)


def _drawn(table: ImageTable, split: NDArray[np.str_], name: str, fraction: float, seed: int) -> NDArray[np.bool_]:
    """The rows (N,) of the drawn fraction of the training classes: at least one class, and never all."""
    if not 0 < fraction < 1:
        raise InputError(f"dataset.reader.{name}={fraction}: a number between 0 and 1")
    training = split == "train"
    classes = np.unique(table.labels[training, 0])
    if len(classes) < 2:
        raise InputError(f"{table.source}: {len(classes)} training class, two are needed to draw {name} of them")
    number = min(max(round(fraction * len(classes)), 1), len(classes) - 1)
    drawn = np.random.default_rng(seed).permutation(classes)[:number]
    rows: NDArray[np.bool_] = training & np.isin(table.labels[:, 0], drawn)
    return rows
