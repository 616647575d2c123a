"""What a data set holds, split by split: counts and sizes of images."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from rich.table import Table
from rich.text import Text

from dml.data.prepared.verification import NO_FILE, CheckedImage
from dml.data.table import SPLITS, UNKNOWN, ImageTable
from dml.runtime.escaping import printable

SizeInPixels = tuple[int, int]
"""The width and the height of an image."""


@dataclass(frozen=True)
class SplitOverview:
    """The numbers of one split.

    Args:
        images: number of image files.
        classes: number of classes at the finest level.
        class_sizes: numbers of images of the smallest, the median and the largest class.
        median_size: median width and median height of the images; (0, 0) if none can be read.
        smallest_size: width and height of the image with the fewest pixels; (0, 0) if none can be read.
        copies: number of files whose content an earlier file of the split has.
        missing: number of files that don't exist.
        unreadable: number of other files that can't be decoded.
    """

    images: int
    classes: int
    class_sizes: tuple[int, int, int]
    median_size: SizeInPixels
    smallest_size: SizeInPixels
    copies: int
    missing: int
    unreadable: int


def summarize_splits(table: ImageTable, images: Mapping[str, CheckedImage]) -> dict[str, SplitOverview]:
    """Count what each split of a table holds -> {split: numbers}, for the splits that have images."""
    return {split: _summarize(table.subset(split), images) for split in SPLITS if len(table.rows(split))}


def _summarize(part: ImageTable, images: Mapping[str, CheckedImage]) -> SplitOverview:
    rows = np.sort(np.unique(part.paths, return_index=True)[1])  # an image may be in several benchmark lists
    files = [images[path] for path in part.paths[rows].tolist()]
    labels = part.labels[rows, 0]
    _, counts = np.unique(labels[labels != UNKNOWN], return_counts=True)
    readable = [image for image in files if not image.error]
    sizes = np.array([(image.width, image.height) for image in readable] or [(0, 0)])
    median = np.median(sizes, axis=0)
    smallest = sizes[sizes.prod(axis=1).argmin()]
    class_sizes = (counts.min(), np.median(counts), counts.max()) if len(counts) else (0, 0, 0)
    missing = sum(image.error == NO_FILE for image in files)
    return SplitOverview(
        images=len(files),
        classes=len(counts),
        class_sizes=(int(class_sizes[0]), int(class_sizes[1]), int(class_sizes[2])),
        median_size=(int(median[0]), int(median[1])),
        smallest_size=(int(smallest[0]), int(smallest[1])),
        copies=len(readable) - len({image.sha256 for image in readable}),
        missing=missing,
        unreadable=len(files) - len(readable) - missing,
    )


def make_overview_table(overviews: Mapping[str, SplitOverview]) -> Table:
    """Make a table for the terminal with a column for each split; five splits fit 80 columns."""
    shown = Table(title="what the splits hold", title_justify="left", title_style="bold")
    shown.add_column("")
    for split in overviews:
        shown.add_column(split, justify="right")
    columns = [_format_overview(overview) for overview in overviews.values()]
    for name in columns[0] if columns else ():
        shown.add_row(name, *(column[name] for column in columns))
    return shown


def _format_overview(overview: SplitOverview) -> dict[str, str]:
    """Return the cells of a split by the names of the rows."""
    smallest, median, largest = overview.class_sizes
    return {
        "images": f"{overview.images:,}",
        "classes": f"{overview.classes:,}",
        "smallest class": f"{smallest:,}",
        "median class": f"{median:,}",
        "largest class": f"{largest:,}",
        "median size": _format_size(overview.median_size),
        "smallest size": _format_size(overview.smallest_size),
        "copies": f"{overview.copies:,}",
        "missing files": f"{overview.missing:,}",
        "unreadable": f"{overview.unreadable:,}",
    }


def _format_size(size: SizeInPixels) -> str:
    return f"{size[0]:,}x{size[1]:,}"


def make_count_table(table: ImageTable, published: Mapping[str, Mapping[str, int]]) -> Table:
    """Make a table of the number of images and of classes in each split, beside the published numbers.

    Args:
        table: the data set.
        published: number of each kind in each split, such as {"train": {"images": 5864, "class": 100}}.
    """
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
