import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dml.ops.errors import InputError

logger = logging.getLogger(__name__)

SPLITS = ("train", "val", "test", "query", "gallery")


@dataclass(frozen=True)
class ImageTable:
    """A data set as one table: a row an image, whatever tree it was read from.

    Args:
        paths: (N,) strings. A path inside a zip file is written ``archive.zip/member``.
        labels: (N, L) int64, level 0 the finest.
        split: (N,) strings out of `SPLITS`; an empty string leaves the row out of all of them.
        levels: the L names of the levels, finest first.
        names: for each level the names of its classes, indexed by label; empty if the data set has none.

    Raises:
        InputError: if the columns disagree in length, a split or a level is unknown, or a label is negative.
    """

    paths: NDArray[np.str_]
    labels: NDArray[np.int64]
    split: NDArray[np.str_]
    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        rows = {len(self.paths), len(self.labels), len(self.split)}
        if len(rows) > 1:
            raise InputError(
                f"image table: {len(self.paths)} paths, {len(self.labels)} labels, {len(self.split)} splits"
            )
        if self.labels.ndim != 2 or self.labels.shape[1] != len(self.levels):
            raise InputError(f"image table: labels of shape {self.labels.shape} for the levels {self.levels}")
        _check_splits(np.unique(self.split).tolist())
        if len(self.labels) and self.labels.min() < 0:
            row = int(np.argmax((self.labels < 0).any(axis=1)))
            raise InputError(f"image table: negative label {self.labels[row].tolist()} of {self.paths[row]}")

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, *splits: str) -> NDArray[np.int64]:
        """The indices of the rows that belong to any of ``splits``, in table order.

        Raises:
            InputError: for a split that isn't one of `SPLITS`.
        """
        _check_splits(splits)
        return np.flatnonzero(np.isin(self.split, splits)).astype(np.int64)

    def subset(self, *splits: str) -> "ImageTable":
        """The table of the rows of ``splits`` alone; labels keep their meaning."""
        rows = self.rows(*splits)
        return replace(self, paths=self.paths[rows], labels=self.labels[rows], split=self.split[rows])

    def counts(self) -> dict[str, dict[str, int]]:
        """For each split in use: the number of images, and of classes at each level."""
        return {
            split: {"images": len(rows)}
            | {level: len(np.unique(self.labels[rows, i])) for i, level in enumerate(self.levels)}
            for split in SPLITS
            if len(rows := self.rows(split))
        }


def _check_splits(splits: Iterable[str]) -> None:
    unknown = sorted({*splits} - {*SPLITS, ""})
    if unknown:
        raise InputError(f"image table: unknown split {unknown[0]!r}; the splits are {', '.join(SPLITS)}")


def hold_out_classes(table: ImageTable, *, folds: int = 5, fold: int = 0, seed: int = 0) -> ImageTable:
    """Moves one class-disjoint fold of the training classes (level 0) from ``train`` to ``val``.

    The classes of an earlier ``val`` count as training classes first, so folds can be taken of any table.

    Raises:
        InputError: if there is no such fold, or fewer training classes than folds.
    """
    rows = table.rows("train", "val")
    classes = np.unique(table.labels[rows, 0])
    if not 0 <= fold < folds:
        raise InputError(f"dataset.fold={fold}: with {folds} folds it is one of 0 to {folds - 1}")
    if len(classes) < folds:
        raise InputError(f"dataset.folds={folds}: there are only {len(classes)} training classes to divide")
    order = np.random.default_rng((seed, folds)).permutation(classes)
    held_out = np.isin(table.labels[rows, 0], order[fold::folds])
    split = table.split.astype("U7")
    split[rows] = np.where(held_out, "val", "train")
    return replace(table, split=split)


def load(
    read: Callable[[str | None], ImageTable],
    root: str | None,
    *,
    name: str,
    counts: Mapping[str, Mapping[str, int]] | None = None,
    verify: bool = True,
) -> ImageTable:
    """Reads a data set and holds it against its published counts.

    Args:
        read: a reader, ``root -> ImageTable``.
        root: the data set's folder.
        name: of the data set, for messages.
        counts: for each split the number of "images" and of classes at each level; what isn't stated isn't checked.
        verify: False makes a count that differs a warning.

    Raises:
        InputError: if a count differs.
    """
    table = read(root)
    found = table.counts()
    for split, published in (counts or {}).items():
        for what, number in published.items():
            actual = found.get(split, {}).get(what, 0)
            if actual != number:
                message = f"{name}: {actual} {what} in the {split} split of {root or 'its archive'}, published {number}"
                if verify:
                    raise InputError(f"{message} (dataset.verify=false reads it all the same)")
                logger.warning(message)
    return table
