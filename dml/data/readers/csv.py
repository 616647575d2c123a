"""The reader of a user's images that a .csv or .parquet file lists."""

import os
from pathlib import Path

from dml.data.image_listing import is_passed_over
from dml.data.layout import read_csv_rows
from dml.data.lists import LAYOUT, Columns, parse_rows
from dml.data.splits import complete_splits
from dml.data.table import ImageTable
from dml.runtime.errors import InputError


def read(
    root: str | Path | None,
    *,
    test_fraction: float | None = 0.5,
    val_fraction: float = 0.0,
    seed: int = 0,
    columns: Columns | None = None,
    encoding: str = "utf-8",
) -> ImageTable:
    """Read images that a text file lists, one line an image, with commas, semicolons or tabs between the cells.

    A .parquet file is read as the .csv file that pandas writes of it.

    The column ``path`` holds the path of the image, relative to the file. The column ``label``, or the columns
    ``level0``, ``level1`` and so on from the finest to the coarsest level, hold `dml.data.cells.name_classes`, which
    are numbered in their sorted order. The column ``split`` says the split, or one that
    `dml.data.split_names.read_split_columns` finds. Without one, and without folders of splits in the paths, whole
    classes are drawn for testing. Other columns are passed over, unless their name is close to one of these, which is
    probably a misspelling.

    The columns ``x_1``, ``y_1``, ``x_2``, ``y_2`` hold a box in pixels, which becomes a part of the path; four empty
    cells stand for the whole image.

    Args:
        test_fraction: see `dml.data.splits.complete_splits`, as for the next two.
        columns: the file's names of the columns, by the names above, such as ``{"path": "image", "label": "class"}``;
            columns that aren't mentioned have the names above. None for "split" passes over columns of splits.
    """
    table = _read_file(root, columns or {}, encoding)
    return complete_splits(table, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)


def read_listed(root: str | Path | None) -> ImageTable:
    """Read the images of a file without their splits; without a column of labels, all have a class without a name."""
    return _read_file(root, {"split": None}, "utf-8", needs_labels=False)


def _read_file(root: str | Path | None, columns: Columns, encoding: str, *, needs_labels: bool = True) -> ImageTable:
    file = _find_file(root)
    rows = read_csv_rows(file, encoding)
    return ImageTable(**parse_rows(rows, str(file), columns, file.parent, needs_labels=needs_labels))


def _find_file(root: str | Path | None) -> Path:
    """Return the path of the file that the root names, or of the only .csv file in the root."""
    path = LAYOUT.root(root, "file")
    if not os.path.isdir(path):
        return path
    files = [file for file in path.glob("*.csv") if not is_passed_over(file.name)]
    if len(files) == 1:
        return files[0]
    holds_folders = any(entry.is_dir() and not is_passed_over(entry.name) for entry in path.iterdir())
    count = f"{len(files)} .csv files" if files else "no .csv file"
    other = "; dataset=folder reads a folder for each class" if holds_folders and not files else ""
    raise InputError(f"dataset.root={root}: {count} in it; give the path of {LAYOUT}{other}")
