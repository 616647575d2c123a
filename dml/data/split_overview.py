"""What the splits of a data set hold: counts and sizes for a person, checksums to find what has changed since."""

import os
from collections.abc import Mapping
from hashlib import sha256

import numpy as np
from rich.table import Table
from rich.text import Text

from dml.data.image_files.contents import ARCHIVE
from dml.data.prepared.verification import NO_FILE, CheckedImage
from dml.data.split_names import SPLITS
from dml.data.table import UNKNOWN, ImageTable
from dml.runtime.files import expand_home
from dml.runtime.text import format_count, printable


def make_overview_table(table: ImageTable, images: Mapping[str, CheckedImage]) -> Table:
    """Make a table for the terminal of what each split holds, a column for each; five splits fit 80 columns."""
    shown = Table(title="what the splits hold", title_justify="left", title_style="bold")
    shown.add_column("")
    columns = {split: summarize_split(table.subset(split), images) for split in SPLITS if len(table.rows(split))}
    for split in columns:
        shown.add_column(split, justify="right")
    for name in next(iter(columns.values()), ()):
        shown.add_row(name, *(column[name] for column in columns.values()))
    return shown


def summarize_split(part: ImageTable, images: Mapping[str, CheckedImage]) -> dict[str, str]:
    """Return the numbers of one split, as texts by their names; sizes are width x height, 0x0 if none can be read."""
    rows = np.sort(np.unique(part.paths, return_index=True)[1])  # an image may be in several benchmark lists
    files = [images[path] for path in part.paths[rows].tolist()]
    labels = part.labels[rows, 0]
    _, counts = np.unique(labels[labels != UNKNOWN], return_counts=True)
    readable = [image for image in files if not image.error]
    sizes = np.array([(image.width, image.height) for image in readable] or [(0, 0)])
    missing = sum(image.error == NO_FILE for image in files)
    class_sizes = (counts.min(), np.median(counts), counts.max()) if len(counts) else (0, 0, 0)
    numbers = {
        "images": len(files),
        "classes": len(counts),
        **dict(zip(("smallest class", "median class", "largest class"), map(int, class_sizes), strict=True)),
        "median size": np.median(sizes, axis=0).astype(int),
        "smallest size": sizes[sizes.prod(axis=1).argmin()],
        "copies": len(readable) - len({image.sha256 for image in readable}),
        "missing files": missing,
        "unreadable": len(files) - len(readable) - missing,
    }
    return {name: "x".join(f"{number:,}" for number in np.atleast_1d(value)) for name, value in numbers.items()}


def make_count_table(table: ImageTable, published: Mapping[str, Mapping[str, int]]) -> Table:
    """Make a table of the number of images and of classes in each split, beside the published numbers."""
    shown = Table(title="images and classes", title_justify="left", title_style="bold")
    for name in ("split", "of"):
        shown.add_column(name)
    for name in ("found", "published"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    counts = table.counts()
    for split in SPLITS:
        split_counts, split_published = counts.get(split, {}), published.get(split, {})
        missing = [kind for kind in split_published if kind not in split_counts]
        for i, kind in enumerate([*split_counts, *missing]):
            count, expected = split_counts.get(kind, 0), split_published.get(kind)
            verdict = "" if expected is None else "[green]same" if count == expected else "[red]differs"
            numbers = f"{count:,}", "" if expected is None else f"{expected:,}"
            shown.add_row(split if i == 0 else "", Text(printable(kind)), *numbers, verdict)
        shown.add_section()
    return shown


SplitSummary = Mapping[str, Mapping[str, str]]
"""{split: {class: "<number of images> <checksum of their paths>"}}, classes of level 0."""
NAMED_CLASSES = 3
"""How many of the classes that have changed a message names."""


def summarize_data(table: ImageTable, root: str | None) -> dict[str, dict[str, str]]:
    """Return the classes and the checksums of a data set's images by split; a data set that was moved has the same."""
    return checksum_splits(table, find_base_folder(root, table))


def find_base_folder(root: str | None, table: ImageTable) -> str | None:
    """Return the folder, or the archive, that the paths of a table are below; None if it can't be known."""
    base = str(expand_home(root)) if root else table.source
    if os.path.isfile(base) and not base.endswith(ARCHIVE):  # a list of images, such as a .csv file
        return os.path.dirname(base) or "."
    return base if os.path.exists(base) else None


def checksum_splits(table: ImageTable, folder: str | None = None) -> dict[str, dict[str, str]]:
    """Return for each split in use its classes, the number of their images and a checksum of the images' paths.

    A benchmark that lists an image at several levels counts it once for each. Paths are taken relative to the folder,
    so that a data set may be moved as a whole.
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
    """Return what differs between two summaries, a phrase for each kind of change, first that of classes."""
    old, new = _group_by_class(before), _group_by_class(after)
    changed: dict[tuple[str, str, str], list[str]] = {}
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            kind = ("class is", "classes are", "gone")
        elif name not in old:
            kind = ("class is", "classes are", "new")
        elif old[name].keys() != new[name].keys():
            kind = ("class", "classes", f"moved from {' and '.join(old[name])} to {' and '.join(new[name])}")
        else:
            kind = ("class has", "classes have", "other images")
            for split in old[name]:
                (count, _), (now, _) = old[name][split].split(), new[name][split].split()
                if old[name][split] != new[name][split]:
                    description = f"{now} instead of {count}" if now != count else "other files"
                    changed.setdefault(kind, []).append(f"{name}: {description}")
            continue
        changed.setdefault(kind, []).append(name)
    order = {"gone": 1, "new": 2, "other images": 3}
    return [
        f"{format_count(len(names), one, many)} {kind} ({_list(names)})"
        for (one, many, kind), names in sorted(changed.items(), key=lambda item: order.get(item[0][2], 0))
    ]


def _group_by_class(summary: SplitSummary) -> dict[str, dict[str, str]]:
    splits: dict[str, dict[str, str]] = {}
    for split, classes in summary.items():
        for name, described in classes.items():
            splits.setdefault(name, {})[split] = described
    return splits


def _list(names: list[str]) -> str:
    more = f", ... {len(names) - NAMED_CLASSES:,} more" if len(names) > NAMED_CLASSES else ""
    return ", ".join(printable(name) for name in sorted(names)[:NAMED_CLASSES]) + more
