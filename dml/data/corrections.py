"""Corrections of a data set: a CSV file that drops images, relabels them and merges classes, and leaves the data alone.

``dml audit`` writes such a file with an empty column ``action``, which the user fills in.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.layout import read_csv_rows
from dml.data.split_overview import find_base_folder, make_relative
from dml.data.table import UNKNOWN, ImageTable, compose_name
from dml.runtime.errors import InputError, suggest
from dml.runtime.paths import expand_home
from dml.runtime.text import format_count, printable

ACTIONS = ("keep", "drop", "relabel", "same_class")
PATH_COLUMNS = ("path", "other_path", "path_1", "path_2")


@dataclass(frozen=True)
class Correction:
    """One line of a file of corrections.

    Args:
        action: one of `ACTIONS`, or "" for a line on which nothing has been decided.
        path: path of the image, relative to the root of the data set or absolute; "" for a line about classes.
        label: name of the class that the image has, or of the class that stays.
        other_label: name of the class that is suggested, or of the other class of a pair.
        new_label: name of the class that the user has chosen in place of ``other_label``.
        place: the file and the line, for error lines.
    """

    action: str
    path: str = ""
    label: str = ""
    other_label: str = ""
    new_label: str = ""
    place: str = ""

    @property
    def target(self) -> str:
        """The name of the class that ``relabel`` gives, or that ``same_class`` merges with ``label``."""
        return self.new_label or self.other_label


@dataclass
class CorrectionCounts:
    """The number of images and classes that corrections change."""

    dropped: int = 0
    relabeled: int = 0
    merged: int = 0
    moved: int = 0

    def describe(self) -> str:
        """Return the numbers in words, such as "dropped 3 images, relabeled 1, merged 0 classes into others"."""
        moved = f", {self.moved:,} moved to the split of the new class" if self.moved else ""
        images = format_count(self.dropped, "image")
        classes = format_count(self.merged, "class", "classes")
        return f"dropped {images}, relabeled {self.relabeled:,}, merged {classes} into others{moved}"


def read_corrections(file: str | Path) -> list[Correction]:
    """Read the lines of a file of corrections.

    Args:
        file: path of a CSV file with the columns ``action`` and ``path``, and ``label``, ``other_label`` and
            ``new_label`` where an action needs them. Other columns are passed over.

    Raises:
        InputError: if the file can't be read, a column is missing, or an action isn't one of `ACTIONS`.
    """
    path = expand_home(file)
    if not path.is_file():
        raise InputError(f"dataset.corrections={file}: no such file; give a .csv file that dml audit has written")
    return [_parse(cells, place) for place, cells in iterate_rows(path)]


def iterate_rows(
    path: Path, columns: Iterable[str] = ("action", "path"), remedy: str = "corrections have the columns of dml audit"
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the file and line, and the cells by column, of each line below the header that isn't empty."""
    rows = read_csv_rows(path)
    _, header = next(rows)
    for column in columns:
        if column not in header:
            raise InputError(f"{path}, line 1: no column {column!r}; {remedy}")
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"{path}, line {line}: {len(row)} cells, the header has {len(header)}")
        yield f"{path}, line {line}", dict(zip(header, map(_strip, header, row), strict=True))


def _strip(column: str, cell: str) -> str:
    """Return a cell, composed and without spaces around it, unless it is the name of a file."""
    return cell if column in PATH_COLUMNS and cell.strip() else compose_name(cell.strip())


def _parse(cells: Mapping[str, str], place: str) -> Correction:
    names = [field.name for field in fields(Correction) if field.name != "place"]
    correction = Correction(**{name: cells.get(name, "") for name in names}, place=place)
    if correction.action and correction.action not in ACTIONS:
        raise InputError(
            f"{place}: unknown action {printable(correction.action)!r}; the actions are {', '.join(ACTIONS)}"
        )
    return correction


def apply_corrections(
    table: ImageTable, corrections: Iterable[Correction], root: str | None = None
) -> tuple[ImageTable, CorrectionCounts]:
    """Return a table without the dropped images, with the new labels, and with merged classes; and what has changed.

    A relabeled image takes the coarser classes of its new class. If no image of that class is in the image's split, it
    moves to the split that most images of the class are in: a training image that gets a test class becomes a test
    image. Merging does the same with the images of the class that is given up.

    Args:
        table: table of the data set.
        corrections: the corrections; those without an action, or with the action keep, change nothing.
        root: root of the data set, to which the paths of the corrections are relative.

    Raises:
        InputError: if a correction names an unknown image or class, lacks what its action needs, contradicts another,
            or leaves no image.
    """
    decided = [correction for correction in corrections if correction.action not in ("", "keep")]
    images = _ImageNames(table, root)
    classes = _ClassNames(table)
    merged_label = _merge_classes(decided, classes)
    dropped: set[int] = set()
    new_labels: dict[int, int] = {}
    for correction in decided:
        if correction.action == "drop":
            dropped.update(_find_dropped_rows(correction, table, images, classes))
        elif correction.action == "relabel":
            _relabel(correction, table, images, classes, merged_label, new_labels)
    for row in dropped & new_labels.keys():
        raise InputError(f"dataset.corrections: {printable(table.locations[row])} is both dropped and relabeled")
    corrected, moved = _change_classes(table, merged_label, new_labels)
    rows = np.setdiff1d(np.arange(len(table)), [*dropped]).astype(np.int64)
    if not len(rows):
        raise InputError("dataset.corrections: no image is left")
    merged_classes = np.flatnonzero(merged_label != np.arange(len(merged_label)))
    counts = CorrectionCounts(
        dropped=len({table.locations[row] for row in dropped}),
        relabeled=len({table.locations[row] for row in new_labels}),
        merged=len(merged_classes),
        moved=len({corrected.locations[row] for row in moved if row not in dropped}),
    )
    return corrected.take(rows).renumber(), counts


class _ImageNames:
    """The rows of images by their paths: relative to the root, absolute, or as the table has them."""

    def __init__(self, table: ImageTable, root: str | None) -> None:
        self.rows_by_path: dict[str, list[int]] = {}
        self.folder = find_base_folder(root, table)
        paths = table.locations.tolist()
        for row, name in enumerate(make_relative(paths, self.folder)):
            for key in {name, paths[row]}:
                self.rows_by_path.setdefault(key, []).append(row)

    def find(self, correction: Correction) -> list[int]:
        for path in (correction.path, correction.path.strip()):  # somebody may have written a space behind the comma
            for spelling in (path, self._normalize(path)):
                if spelling in self.rows_by_path:
                    return self.rows_by_path[spelling]
        raise InputError(f"{correction.place}: the data set has no image {printable(correction.path)!r}")

    def _normalize(self, path: str) -> str:
        """Return a path relative to the root, without parts such as ``./``."""
        return os.path.relpath(path, self.folder or ".") if os.path.isabs(path) else os.path.normpath(path)


class _ClassNames:
    """The finest classes by name; without names, by their numbers."""

    def __init__(self, table: ImageTable) -> None:
        used = np.setdiff1d(table.labels[:, 0], UNKNOWN).tolist()
        self.level = table.levels[0]
        self.size = int(table.labels[:, 0].max(initial=-1)) + 1
        self.labels_by_name: dict[str, list[int]] = {}
        for label in used:
            self.labels_by_name.setdefault(compose_name(table.name_class(label).strip()), []).append(label)

    def find(self, name: str, correction: Correction) -> int:
        if not name:
            raise InputError(f"{correction.place}: {correction.action} needs a class in new_label or other_label")
        labels = self.labels_by_name.get(name, [])
        if not labels:
            options = suggest(name, self.labels_by_name.keys()) if len(name) < 100 else ""
            raise InputError(f"{correction.place}: no {self.level} is called {printable(name)!r}{printable(options)}")
        if len(labels) > 1:
            raise InputError(f"{correction.place}: {len(labels)} classes are called {printable(name)!r}")
        return labels[0]


def _merge_classes(corrections: Iterable[Correction], classes: _ClassNames) -> NDArray[np.int64]:
    """Return for each class the class that it becomes (C,): the one that stays of those that are the same."""
    parents = list(range(classes.size))

    def find_root(label: int) -> int:
        while parents[label] != label:
            label = parents[label]
        return label

    for correction in corrections:
        if correction.action == "same_class":
            if not correction.label:
                raise InputError(f"{correction.place}: same_class needs the class that stays in the column label")
            staying, other = (classes.find(name, correction) for name in (correction.label, correction.target))
            parents[find_root(other)] = find_root(staying)
    return np.array([find_root(label) for label in range(classes.size)], dtype=np.int64)


def _find_dropped_rows(
    correction: Correction, table: ImageTable, images: _ImageNames, classes: _ClassNames
) -> list[int]:
    if correction.path:
        return images.find(correction)
    if not correction.label or correction.other_label:
        raise InputError(f"{correction.place}: drop needs an image in the column path, or a single class in label")
    return np.flatnonzero(table.labels[:, 0] == classes.find(correction.label, correction)).tolist()


def _relabel(
    correction: Correction,
    table: ImageTable,
    images: _ImageNames,
    classes: _ClassNames,
    merged_label: NDArray[np.int64],
    new_labels: dict[int, int],
) -> None:
    if not correction.path:
        raise InputError(f"{correction.place}: relabel needs an image in the column path")
    label = int(merged_label[classes.find(correction.target, correction)])
    for row in images.find(correction):
        before = int(table.labels[row, 0])
        if before == UNKNOWN:
            continue
        if correction.label and classes.find(correction.label, correction) not in (before, merged_label[before]):
            name = printable(table.name_class(before))
            raise InputError(
                f"{correction.place}: {printable(correction.path)} is of the class {name!r}, not "
                f"{printable(correction.label)!r}; the data has changed since the audit"
            )
        if new_labels.setdefault(row, label) != label:
            raise InputError(f"{correction.place}: {printable(correction.path)} has two new classes")


def _change_classes(
    table: ImageTable, merged_label: NDArray[np.int64], new_labels: Mapping[int, int]
) -> tuple[ImageTable, list[int]]:
    """Return the table with the classes that rows get, and the rows that change their split."""
    before = table.labels[:, 0]
    after = np.where(before == UNKNOWN, UNKNOWN, merged_label[np.maximum(before, 0)])
    for row, label in new_labels.items():
        after[row] = label
    labels, split, benchmark = table.labels.copy(), table.split.copy(), table.benchmark.copy()
    moved = []
    for row in np.flatnonzero(after != before).tolist():
        members = np.flatnonzero(before == after[row])
        known = table.labels[row] != UNKNOWN
        labels[row, known] = table.labels[members[0], known]
        labels[row, 0] = after[row]
        if split[row] and split[row] not in table.split[members]:
            ((target, _),) = Counter(name for name in table.split[members].tolist() if name).most_common(1) or [("", 0)]
            member = members[np.argmax(table.split[members] == target)]
            split[row], benchmark[row] = target, table.benchmark[member]
            labels[row, 1:] = table.labels[member, 1:]  # also at levels at which the benchmark of the row had none
            moved.append(row)
    return replace(table, labels=labels, split=split, benchmark=benchmark), moved
