"""The table that describes a data set, its checks, and its splits."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.data.contents import split_part
from dml.data.lists import parse_frame
from dml.data.split_names import SPLITS
from dml.runtime.configuration import dotted_name
from dml.runtime.errors import InputError, check_choice
from dml.runtime.text import printable

logger = logging.getLogger(__name__)

TRAINING_SPLITS = ("train", "val")
TEST_SPLITS = ("test", "query", "gallery")
EVERY_LEVEL = -1
"""The ``benchmark`` of a row that the benchmark list of every level contains."""
UNKNOWN = -1
"""A label or a ``content`` that isn't known."""

COLUMNS = ("paths", "labels", "split", "benchmark", "content")
"""The attributes of a table that have a value for each row."""

RESERVED_LEVELS = frozenset(
    ("path", "images", "split", "benchmark", "content", "height", "width", "sha256", "error")
) | {"bytes", "mtime_ns", "inode", "ctime_ns"}
"""Names that a level may not have: those of the counts of a table, and of the columns of a prepared one."""


@dataclass(frozen=True)
class ImageTable:
    """The table of a data set, with one row for each image.

    Args:
        paths: (N,) strings, locations of the images: paths of their files, where a member of a zip file is written
            ``archive.zip/member`` and the part of an image in a box ``photo.jpg#x1,y1,x2,y2``: left, top, right and
            bottom edge in pixels of the upright image.
        labels: (N, L) int64 labels, level 0 the finest. A row that is evaluated at one level alone may have the label
            `UNKNOWN` at the others, and a row of ``train`` at all of them.
        split: (N,) strings out of `SPLITS`; an empty string puts the row into no split.
        levels: names of the L levels, the finest level first.
        names: class names of each level, indexed by label; empty if the data set has no class names.
        benchmark: (N,) int64, level of the benchmark list that contains the row (DyML has a list for each level), or
            `EVERY_LEVEL`. An empty array puts all rows into the list of every level.
        source: the files that list the images, for error lines.
        content: (N,) int64, a number that rows share if their image files have the same content, or `UNKNOWN` for a
            row whose content isn't compared. An empty array makes it unknown, or the number of the file if there are
            parts, as those of an image exclude each other.
        excluded: (E, 2) int64, pairs of rows: the query in the first row excludes the gallery item in the second one
            from its ranking, as the protocol of the data set says. An empty array excludes nothing.
        is_tree: whether all images of a class have to share their classes at the coarser levels.
    """

    paths: NDArray[np.str_]
    labels: NDArray[np.int64]
    split: NDArray[np.str_]
    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...] = ()
    benchmark: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    source: str = ""
    content: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    excluded: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    is_tree: bool = True

    def __post_init__(self) -> None:
        self._fill_columns()
        if fault := next(self._find_malformed(), ""):
            raise InputError(f"image table: {fault}")

    @classmethod
    def from_frame(cls, frame: Any) -> "ImageTable":
        """Make a table of a pandas DataFrame, as `dml.data.readers.csv.read` does of ``frame.to_csv``'s file.

        Paths are relative to the working folder. Without splits, a training draws classes for test and validation. What
        is a table already is returned.
        """
        return frame if isinstance(frame, ImageTable) else cls(**parse_frame(frame))

    def __repr__(self) -> str:
        splits = ", ".join(f"{split} {count['images']:,}" for split, count in self.counts().items()) or "no splits"
        return f"{type(self).__name__}({len(self):,} images, levels {', '.join(self.levels)}, {splits})"

    def _fill_columns(self) -> None:
        """Give empty columns the values that stand for none."""
        files = [] if len(self.content) else [split_part(path)[0] for path in self.paths.tolist()]
        if files and files != self.paths.tolist():
            object.__setattr__(self, "content", np.unique(files, return_inverse=True)[1])
        none: dict[str, Any] = {"content": UNKNOWN, "benchmark": EVERY_LEVEL}
        for column, value in none.items():
            if not len(getattr(self, column)):
                object.__setattr__(self, column, np.full(len(self.paths), value))

    def _find_malformed(self) -> Iterator[str]:
        """Yield what makes this no table; what comes later is looked for only where there is nothing earlier."""
        lengths = {f"{name.rstrip('s')}s": len(getattr(self, name)) for name in COLUMNS}
        if len({*lengths.values()}) > 1:
            yield ", ".join(f"{length} {column}" for column, length in lengths.items())
        if self.excluded.shape[1:] != (2,) or not np.isin(self.excluded, np.arange(len(self.paths))).all():
            yield f"excluded {(*self.excluded.shape,)} isn't pairs of rows of the table"
        if self.labels.ndim != 2 or self.labels.shape[1] != len(self.levels) or not self.levels:
            yield f"labels of shape {self.labels.shape} for the levels {self.levels}"
        if len({*self.levels} - RESERVED_LEVELS) < len(self.levels):
            yield f"the levels {self.levels} need different names, none of {', '.join(sorted(RESERVED_LEVELS))}"
        if self.labels.dtype.kind not in "biu":  # floats would let NaN be a class unequal to itself
            yield f"labels of type {self.labels.dtype}, expected integers"
        if unknown := sorted({*np.unique(self.split).tolist()} - {*SPLITS, ""}):
            yield f"unknown split {unknown[0]!r}; the splits are {', '.join(SPLITS)}"
        yield from self._find_wrong_labels()
        yield from _find_wrong_paths(self.paths.tolist(), self.source)
        for level, names in zip(self.levels, self.names, strict=False):
            if (name := next((name for name in names if not _is_utf8(name)), None)) is not None:
                named = f"the {level} '{printable(name)}' of {printable(self.source)}"
                yield f"{named} isn't UTF-8; rename it, and its folder"

    def _find_wrong_labels(self) -> Iterator[str]:
        lists = np.unique(self.benchmark).tolist()
        if lists and not EVERY_LEVEL <= lists[0] <= lists[-1] < len(self.levels):
            yield f"benchmarks {lists} for the levels {self.levels}"
        if self.names and len(self.names) != len(self.levels):
            yield f"names of {len(self.names)} levels for the levels {self.levels}"
        for i, level in enumerate(self.levels):
            labels, is_evaluated = self.labels[:, i], np.isin(self.benchmark, (EVERY_LEVEL, i))
            if (is_wrong := labels < np.where(is_evaluated, 0, UNKNOWN)).any():
                row = int(np.argmax(is_wrong))
                yield f"negative label {self.labels[row].tolist()} of {printable(self.paths[row])}"
            if self.names and (highest := labels.max(initial=UNKNOWN)) >= len(self.names[i]):
                yield f"label {highest} of level {level} with {len(self.names[i])} names"

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def has_level_lists(self) -> bool:
        """Whether there is a separate benchmark list for each level, as in DyML, instead of one for all levels."""
        return bool((self.benchmark != EVERY_LEVEL).any())

    def rows(self, *splits: str) -> NDArray[np.int64]:
        """Return the indices of the rows of the splits, in the order of the table."""
        for split in filter(None, splits):  # "" is the split of the rows that are in none
            check_choice("split", split, SPLITS)
        return np.flatnonzero(np.isin(self.split, splits)).astype(np.int64)

    def subset(self, *splits: str) -> "ImageTable":
        """Return a table of the rows of the splits; the labels stay the same."""
        return self.take(self.rows(*splits))

    def name_class(self, label: int) -> str:
        """Return the name of a class of the finest level; its number if it has none, "" for `UNKNOWN`."""
        if label == UNKNOWN:
            return ""
        return self.names[0][label] if self.names else str(label)

    def select_evaluated(self, split: str) -> "ImageTable":
        """Return a table of the rows that an evaluation of a split uses; "test" includes query and gallery."""
        return self.subset(*TEST_SPLITS) if split == "test" else self.subset(split)

    def take(self, rows: NDArray[np.int64]) -> "ImageTable":
        """Return a table of the rows with these indices, in their order; the labels stay the same."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return replace(self, **columns, excluded=renumber_pairs(self.excluded, len(self), rows, rows))

    def renumber(self) -> "ImageTable":
        """Return the table with labels from 0 to C - 1 at each level, in their order, as proxies need them."""
        labels, names = self.labels.copy(), []
        for i in range(len(self.levels)):
            is_known = labels[:, i] != UNKNOWN
            used, labels[is_known, i] = np.unique(labels[is_known, i], return_inverse=True)
            names.append(tuple(self.names[i][label] for label in used) if self.names else ())
        return replace(self, labels=labels, names=tuple(names) if self.names else ())

    def counts(self) -> dict[str, dict[str, int]]:
        """Count images, each once, and classes of each split: ``{"train": {"images": 8, "class": 2}}``."""
        return {
            split: {"images": len({*self.paths[rows].tolist()}) if len(self.excluded) else len(rows)}
            | {level: len(np.setdiff1d(self.labels[rows, i], UNKNOWN)) for i, level in enumerate(self.levels)}
            for split in SPLITS
            if len(rows := self.rows(split))
        }


def find_equal(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the pairs of equal numbers: their indices in each array. Numbers below 0 equal none. (Q,), (G,) -> (P, 2)

    >>> find_equal(np.array([7, 5, -1]), np.array([5, 7, 5, -1])).tolist()
    [[0, 1], [1, 0], [1, 2]]
    """
    order = np.argsort(second, kind="stable")
    starts, stops = (np.searchsorted(second[order], first, side) for side in ("left", "right"))
    numbers = np.where(first < 0, 0, stops - starts)
    rows = np.repeat(np.arange(len(first)), numbers)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers - starts, numbers)
    pairs: NDArray[np.int64] = np.stack([rows, order[places]], axis=1)
    return pairs


def renumber_pairs(
    pairs: NDArray[np.int64], number: int, first: NDArray[np.int64], second: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the pairs (P, 2) of ``number`` rows that are in ``first`` (Q,) and ``second`` (G,), as indices of these.

    >>> renumber_pairs(np.array([[4, 2], [4, 1]]), 5, first=np.array([3, 4]), second=np.array([2])).tolist()
    [[1, 0]]
    """
    places = np.full((2, number), UNKNOWN)
    places[0, first], places[1, second] = np.arange(len(first)), np.arange(len(second))
    renumbered = np.stack([places[0, pairs[:, 0]], places[1, pairs[:, 1]]], axis=1)
    inside: NDArray[np.int64] = renumbered[(renumbered != UNKNOWN).all(axis=1)]
    return inside


def check_paths(paths: Sequence[str], source: str) -> None:
    """Make sure that every path can name a file, and is UTF-8."""
    if fault := next(_find_wrong_paths(paths, source), ""):
        raise InputError(f"image table: {fault}")


def _find_wrong_paths(paths: Sequence[str], source: str) -> Iterator[str]:
    text = "\n".join(["", *paths, ""])  # to check the paths one by one takes ten times as long
    if _is_utf8(text) and not any(sign in text for sign in ("\0", "/\n", "\n\n")):
        return
    not_utf8 = "isn't UTF-8, as results are; rename the file or its folder (convmv -f latin1 -t utf8 renames many)"
    for row, path in enumerate(paths):
        faults = {
            "is empty": not path,
            "holds a NUL byte, which no file's name does": "\0" in path,
            not_utf8: not _is_utf8(path),
            "is a folder's; give an image's": path.endswith("/"),
        }
        if fault := next((fault for fault, is_there in faults.items() if is_there), ""):
            source_words = f" of {printable(source)}" if source else ""
            yield f"the path '{printable(path)}' in row {row}{source_words} {fault}"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def list_training_classes(table: ImageTable) -> NDArray[np.int64]:
    """List the labels (C,) of the finest classes in the training splits, rising."""
    classes: NDArray[np.int64] = np.unique(table.labels[table.rows(*TRAINING_SPLITS), 0])
    return classes


def hold_out_classes(table: ImageTable, *, folds: int = 5, fold: int = 0, seed: int = 0) -> ImageTable:
    """Make one fold of the classes (level 0) of ``train`` and ``val`` the split ``val``, and all others ``train``."""
    rows, classes = table.rows(*TRAINING_SPLITS), list_training_classes(table)
    if not (2 <= folds <= len(classes) and 0 <= fold < folds):
        known = f"folds are 2 to {len(classes)}, the number of training classes, or null; a fold is 0 to folds - 1"
        raise InputError(f"dataset.folds={folds}, dataset.fold={fold}: {known}")
    order = np.random.default_rng((seed, folds)).permutation(classes)
    is_held_out = np.isin(table.labels[rows, 0], order[fold::folds])
    split = table.split.astype("U7")
    split[rows] = np.where(is_held_out, "val", "train")
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
    """Read a data set, and compare it with its published counts; ``verify`` makes a fault an error, not a warning."""
    table = read(root) if callable(read) else read
    if not isinstance(table, ImageTable) or not callable(read):
        described = f"{dotted_name(read)} gives a {type(table).__name__}"
        raise InputError(f"dataset.reader: {described}, expected a function (_partial_: true) that gives an ImageTable")
    for fault in find_faults(table, counts, disjoint=disjoint):
        message = printable(f"{name}: {fault}, in {table.source or root}")
        if verify:
            raise InputError(f"{message} (dataset.verify=false reads it all the same)")
        logger.warning(message)
    return table


def find_faults(
    table: ImageTable, counts: Mapping[str, Mapping[str, int]] | None = None, *, disjoint: bool = True
) -> Iterator[str]:
    """Yield a line for each fault of a table.

    The faults are: an image that is in a split, or in a benchmark list, twice; a number of images or classes that
    differs from the published one; a label that no image has, below one that an image has; a class in a training and in
    a test split; and a class that belongs to two coarser classes, if the table is a tree.
    """
    yield from _find_repeated_images(table)
    table_counts = table.counts()
    for split, published_counts in (counts or {}).items():
        for counted, published in published_counts.items():
            if (actual := table_counts.get(split, {}).get(counted, 0)) != published:
                yield f"{actual} {counted} in the {split} split, published {published}"
    for i, level in enumerate(table.levels):
        used_labels = np.setdiff1d(table.labels[:, i], UNKNOWN)
        if len(used_labels) and len(used_labels) != used_labels[-1] + 1:
            missing = int(np.argmax(used_labels != np.arange(len(used_labels))))
            yield f"no image has label {missing} of level {level}, whose labels go to {used_labels[-1]}"
    if disjoint:
        yield from _find_shared_classes(table)
    if table.is_tree:
        yield from _find_classes_of_two_parents(table)


def _find_repeated_images(table: ImageTable) -> Iterator[str]:
    # Rows of the same hash are only candidates; the loop below compares their paths and lists.
    keys = np.fromiter(map(hash, zip(table.paths, table.benchmark, strict=True)), np.int64, len(table))
    _, first, number = np.unique(keys, return_index=True, return_counts=True)
    for i in first[number > 1]:
        rows = np.flatnonzero(keys == keys[i])
        rows = rows[(table.paths[rows] == table.paths[i]) & (table.benchmark[rows] == table.benchmark[i])]
        if len(rows) > 1 and not _is_met_once(table, rows):
            splits = " and ".join(sorted({split or "no" for split in table.split[rows].tolist()}))
            yield f"image {printable(table.paths[i])} is there {len(rows)} times, in the {splits} split"


def _is_met_once(table: ImageTable, rows: NDArray[np.int64]) -> bool:
    """Return whether the rows are of the gallery, and every query excludes all of them, or all but one."""
    excluding = table.excluded[np.isin(table.excluded[:, 1], rows), 0]
    is_query = (table.split == "query") & (table.benchmark == table.benchmark[rows[0]])
    numbers = np.bincount(excluding, minlength=len(table))[is_query]
    return bool((table.split[rows] == "gallery").all() and len(numbers) and (numbers >= len(rows) - 1).all())


def _find_shared_classes(table: ImageTable) -> Iterator[str]:
    is_evaluated = np.isin(table.benchmark, (EVERY_LEVEL, 0)) & (table.split != "")
    is_training = np.isin(table.split, TRAINING_SPLITS)
    shared = find_shared_classes(table, is_evaluated & is_training, is_evaluated & ~is_training)
    if len(shared):
        classes = "class is" if len(shared) == 1 else "classes are"
        example = f"label {_describe_label(table, 0, shared[0])} of level {table.levels[0]}"
        yield f"{len(shared)} {classes} in training and in test, such as {example}; dataset.disjoint=false allows it"


def find_shared_classes(table: ImageTable, first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64]:
    """Return the finest classes (C,) of the second rows that have a label of the first rows, rising."""
    known = np.setdiff1d(table.labels[first, 0], UNKNOWN)
    classes: NDArray[np.int64] = np.intersect1d(table.labels[second, 0], known)
    return classes


def _find_classes_of_two_parents(table: ImageTable) -> Iterator[str]:
    for i in range(len(table.levels) - 1):
        rows = np.flatnonzero((table.labels[:, i : i + 2] != UNKNOWN).all(axis=1))
        fine, coarse = table.labels[rows, i : i + 2].T
        parents = np.full(fine.max(initial=-1) + 1, UNKNOWN)
        parents[fine] = coarse
        if (differs := parents[fine] != coarse).any():
            label = fine[np.argmax(differs)]
            parents_of_label, first = np.unique(coarse[fine == label], return_index=True)
            examples = zip(parents_of_label[:2], table.paths[rows[fine == label][first[:2]]], strict=True)
            described = ", and ".join(
                f"{_describe_label(table, i + 1, parent)}, such as {printable(path)}" for parent, path in examples
            )
            start = f"label {_describe_label(table, i, label)} of level {table.levels[i]} is in two classes"
            yield f"{start} of level {table.levels[i + 1]}: {described}"


def _describe_label(table: ImageTable, level: int, label: int) -> str:
    """Return a label with the name of its class, such as "3 (robin)"."""
    return f"{label} ({printable(table.names[level][label])})" if table.names else f"{label}"
