"""What a run remembers of its data set, and what has changed since."""

import os
from collections.abc import Mapping
from hashlib import sha256

import numpy as np

from dml.data.image_files.contents import ARCHIVES
from dml.data.table import SPLITS, ImageTable
from dml.runtime.escaping import printable
from dml.runtime.filesystem.paths import expand_home
from dml.runtime.text.counts import format_count

SplitSummary = Mapping[str, Mapping[str, str]]
"""{split: {class: "<number of images> <checksum of their paths>"}}, classes of level 0."""

NAMED_CLASSES = 3
"""How many of the classes that have changed a message names."""


def summarize_data(table: ImageTable, root: str | None) -> dict[str, dict[str, str]]:
    """Return the classes and the checksums of a data set's images by split; a data set that was moved has the same.

    Args:
        table: the data set.
        root: root of the data set, a folder or a file; None takes the source that the table names.
    """
    return summarize_splits(table, find_base_folder(root, table))


def find_base_folder(root: str | None, table: ImageTable) -> str | None:
    """Return the folder, or the archive, that the paths of a table are below; None if it can't be known."""
    base = str(expand_home(root)) if root else table.source
    if os.path.isfile(base) and not base.endswith(ARCHIVES):  # a list of images, such as a .csv file
        return os.path.dirname(base) or "."
    return base if os.path.exists(base) else None


def summarize_splits(table: ImageTable, folder: str | None = None) -> dict[str, dict[str, str]]:
    """Return for each split in use its classes, the number of their images and a checksum of the images' paths.

    A benchmark that lists an image at several levels counts it once for each.

    Args:
        table: the data set.
        folder: folder that the paths are taken relative to, so that a data set may be moved as a whole; None takes the
            paths as they are.
    """
    paths = make_relative(table.paths.tolist(), folder)
    summary: dict[str, dict[str, str]] = {}
    for split in SPLITS:
        rows = table.rows(split)
        rows = rows[np.argsort(table.labels[rows, 0], kind="stable")]
        labels, starts = np.unique(table.labels[rows, 0], return_index=True)
        for label, class_rows in zip(labels.tolist(), np.split(rows, starts[1:]), strict=False):
            name = table.names[0][label] if table.names and label >= 0 else str(label)
            lines = sorted(f"{paths[row]}\0{table.labels[row].tolist()[1:]}" for row in class_rows.tolist())
            checksum = sha256("\n".join(lines).encode()).hexdigest()[:16]
            summary.setdefault(split, {})[name] = f"{len(lines)} {checksum}"
    return summary


def make_relative(paths: list[str], folder: str | None) -> list[str]:
    """Return paths relative to a folder; with None, return them as they are."""
    if not folder:
        return paths
    prefix = os.path.join(folder, "")
    return [
        # relpath takes 10 µs
        path.removeprefix(prefix) if path.startswith(prefix) and "/../" not in path else os.path.relpath(path, folder)
        for path in paths
    ]


def describe_changes(before: SplitSummary, after: SplitSummary) -> list[str]:
    """Return what differs between two summaries, a phrase for each kind of change; empty if nothing does.

    Classes that are in other splits come first, since they decide what a metric means.
    """
    splits_before, splits_after = _splits_by_class(before), _splits_by_class(after)
    common_classes = [name for name in splits_before if name in splits_after]
    changes = []
    moves: dict[tuple[str, str], list[str]] = {}
    for name in common_classes:
        if splits_before[name] != splits_after[name]:
            move = (" and ".join(splits_before[name]), " and ".join(splits_after[name]))
            moves.setdefault(move, []).append(name)
    for (old, new), names in moves.items():
        changes.append(f"{format_count(len(names), 'class', 'classes')} moved from {old} to {new} ({_list(names)})")
    for phrase, names in (
        ("gone", [name for name in splits_before if name not in splits_after]),
        ("new", [name for name in splits_after if name not in splits_before]),
    ):
        if names:
            changes.append(f"{format_count(len(names), 'class is', 'classes are')} {phrase} ({_list(names)})")
    altered = [
        (name, before[split][name].split()[0], after[split][name].split()[0])
        for name in common_classes
        if splits_before[name] == splits_after[name]
        for split in splits_before[name]
        if before[split][name] != after[split][name]
    ]
    if altered:
        names = [
            f"{name}: {new} instead of {old}" if old != new else f"{name}: other files" for name, old, new in altered
        ]
        changes.append(f"{format_count(len(names), 'class has', 'classes have')} other images ({_list(names)})")
    return changes


def _splits_by_class(summary: SplitSummary) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {}
    for split, classes in summary.items():
        for name in classes:
            splits.setdefault(name, []).append(split)
    return splits


def _list(names: list[str]) -> str:
    more = f", ... {len(names) - NAMED_CLASSES:,} more" if len(names) > NAMED_CLASSES else ""
    return ", ".join(printable(name) for name in sorted(names)[:NAMED_CLASSES]) + more
