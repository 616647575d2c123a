import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dml.ops.errors import InputError

logger = logging.getLogger(__name__)

SPLITS = ("train", "val", "test", "query", "gallery")
TRAINING = ("train", "val")
HELD_OUT = ("test", "query", "gallery")
EVERY_LEVEL = -1
UNKNOWN = -1


@dataclass(frozen=True)
class ImageTable:
    """A data set as one table: a row an image, whatever tree it was read from.

    Args:
        paths: (N,) strings. A path inside a zip file is written ``archive.zip/member``.
        labels: (N, L) int64, level 0 the finest; in a row judged at one level alone the others may be `UNKNOWN`.
        split: (N,) strings out of `SPLITS`; an empty string leaves the row out of all of them.
        levels: the L names of the levels, finest first.
        names: for each level the names of its classes, indexed by label; empty if the data set has none.
        benchmark: (N,) int64, the one level that the row's list is judged at (DyML), or `EVERY_LEVEL`; left empty,
            all rows are of every level's list.
        source: the lists that it was read from, for messages.
        content: (N,) int64, a number that rows of the same image file's content share, under whatever name, or
            `UNKNOWN` for a row that is compared with none; left empty, it is unknown of all rows.

    Raises:
        InputError: if the columns disagree in length, a split or a level is unknown, a label is negative or has no
            name.
    """

    paths: NDArray[np.str_]
    labels: NDArray[np.int64]
    split: NDArray[np.str_]
    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...] = ()
    benchmark: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    source: str = ""
    content: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if not len(self.content):
            object.__setattr__(self, "content", np.full(len(self.paths), UNKNOWN, dtype=np.int64))
        if not len(self.benchmark):
            object.__setattr__(self, "benchmark", np.full(len(self.paths), EVERY_LEVEL, dtype=np.int64))
        lengths = {
            "paths": len(self.paths),
            "labels": len(self.labels),
            "splits": len(self.split),
            "benchmarks": len(self.benchmark),
            "contents": len(self.content),
        }
        if len({*lengths.values()}) > 1:
            raise InputError(f"image table: {', '.join(f'{number} {what}' for what, number in lengths.items())}")
        if self.labels.ndim != 2 or self.labels.shape[1] != len(self.levels):
            raise InputError(f"image table: labels of shape {self.labels.shape} for the levels {self.levels}")
        _check_splits(np.unique(self.split).tolist())
        self._check_labels()

    def _check_labels(self) -> None:
        if (
            not EVERY_LEVEL
            <= self.benchmark.min(initial=EVERY_LEVEL)
            <= self.benchmark.max(initial=0)
            < len(self.levels)
        ):
            raise InputError(
                f"image table: benchmarks {np.unique(self.benchmark).tolist()} for the levels {self.levels}"
            )
        if self.names and len(self.names) != len(self.levels):
            raise InputError(f"image table: names of {len(self.names)} levels for the levels {self.levels}")
        for i, level in enumerate(self.levels):
            judged = np.isin(self.benchmark, (EVERY_LEVEL, i))
            if (wrong := self.labels[:, i] < np.where(judged, 0, UNKNOWN)).any():
                row = int(np.argmax(wrong))
                raise InputError(f"image table: negative label {self.labels[row].tolist()} of {self.paths[row]}")
            if self.names and len(self.labels) and self.labels[:, i].max() >= len(self.names[i]):
                raise InputError(
                    f"image table: label {self.labels[:, i].max()} of level {level} with {len(self.names[i])} names"
                )

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
        return self.take(self.rows(*splits))

    def evaluated(self, split: str) -> "ImageTable":
        """The table of the rows that an evaluation of ``split`` takes; "test" stands for query and gallery as well."""
        return self.subset(*HELD_OUT) if split == "test" else self.subset(split)

    def take(self, rows: NDArray[np.int64]) -> "ImageTable":
        """The table of the given rows alone, in their order; labels keep their meaning."""
        columns = {name: getattr(self, name)[rows] for name in ("paths", "labels", "split", "benchmark", "content")}
        return replace(self, **columns)

    def renumbered(self) -> "ImageTable":
        """The same with labels from 0 to C - 1 at each level, in their order, none unused: what proxies count by."""
        labels, names = self.labels.copy(), []
        for i in range(len(self.levels)):
            used, labels[:, i] = np.unique(self.labels[:, i], return_inverse=True)
            names.append(tuple(self.names[i][label] for label in used) if self.names else ())
        return replace(self, labels=labels, names=tuple(names) if self.names else ())

    def counts(self) -> dict[str, dict[str, int]]:
        """For each split in use: the number of images, and of classes at each level."""
        return {
            split: {"images": len(rows)}
            | {level: len(np.setdiff1d(self.labels[rows, i], UNKNOWN)) for i, level in enumerate(self.levels)}
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
    rows = table.rows(*TRAINING)
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
    disjoint: bool = True,
    verify: bool = True,
) -> ImageTable:
    """Reads a data set and holds it against its published counts and the rules of its splits.

    Args:
        read: a reader, ``root -> ImageTable``.
        root: the data set's folder.
        name: of the data set, for messages.
        counts: for each split the number of "images" and of classes at each level; what isn't stated isn't checked.
        disjoint: whether no class may be in the training and the test splits both.
        verify: False makes each fault a warning.

    Raises:
        InputError: for the first of the faults: a count that differs, a label that no image has below one that is
            used, an image that is in the table twice, a class on both sides, or one with two coarser classes.
    """
    table = read(root)
    for fault in faults(table, counts, disjoint=disjoint):
        message = f"{name}: {fault}, in {table.source or root}"
        if verify:
            raise InputError(f"{message} (dataset.verify=false reads it all the same)")
        logger.warning(message)
    return table


def faults(
    table: ImageTable, counts: Mapping[str, Mapping[str, int]] | None = None, *, disjoint: bool = True
) -> Iterator[str]:
    """What is wrong with a table, a line a fault; `load` says what is looked at."""
    found = table.counts()
    for split, published in (counts or {}).items():
        for what, number in published.items():
            if (actual := found.get(split, {}).get(what, 0)) != number:
                yield f"{actual} {what} in the {split} split, published {number}"
    yield from _repeated(table)
    for i, level in enumerate(table.levels):
        used = np.setdiff1d(table.labels[:, i], UNKNOWN)
        if len(used) and len(used) != used[-1] + 1:
            missing = int(np.argmax(used != np.arange(len(used))))
            yield f"no image has label {missing} of level {level}, whose labels go to {used[-1]}"
    if disjoint:
        yield from _shared_classes(table)
    yield from _two_parents(table)


def _repeated(table: ImageTable) -> Iterator[str]:
    keys = np.fromiter(map(hash, zip(table.paths, table.benchmark, strict=True)), np.int64, len(table))
    _, first, number = np.unique(keys, return_index=True, return_counts=True)
    for i in first[number > 1]:
        rows = np.flatnonzero((table.paths == table.paths[i]) & (table.benchmark == table.benchmark[i]))
        if len(rows) > 1:
            splits = " and ".join(sorted({split or "no" for split in table.split[rows].tolist()}))
            yield f"image {table.paths[i]} is there {len(rows)} times, in the {splits} split"


def _shared_classes(table: ImageTable) -> Iterator[str]:
    judged = np.isin(table.benchmark, (EVERY_LEVEL, 0)) & (table.split != "")
    training = np.isin(table.split, TRAINING)
    both = np.intersect1d(table.labels[judged & training, 0], table.labels[judged & ~training, 0])
    if len(both):
        name = f" ({table.names[0][both[0]]})" if table.names else ""
        yield f"{len(both)} {table.levels[0]} classes are in training and test both, such as label {both[0]}{name}"


def _two_parents(table: ImageTable) -> Iterator[str]:
    for i in range(len(table.levels) - 1):
        pairs = table.labels[:, i : i + 2]
        fine, coarse = pairs[(pairs != UNKNOWN).all(axis=1)].T
        parent = np.full(fine.max(initial=-1) + 1, UNKNOWN)
        parent[fine] = coarse
        if (other := parent[fine] != coarse).any():
            row = int(np.argmax(other))
            first, second = sorted((int(coarse[row]), int(parent[fine[row]])))
            yield (
                f"label {fine[row]} of level {table.levels[i]} is in two classes of level {table.levels[i + 1]}, "
                f"{first} and {second}"
            )
