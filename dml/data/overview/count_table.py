"""A table for the terminal: how many images and classes each split of a data set has."""

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from dml.data.table import SPLITS, ImageTable
from dml.ops.escaping import printable


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
