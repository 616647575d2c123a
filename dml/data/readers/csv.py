import csv
import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dml.data.layout import Layout, lines_of
from dml.data.splits import complete_splits, numbered
from dml.data.table import SPLITS, ImageTable
from dml.ops.errors import InputError
from dml.ops.paths import expand_home

LAYOUT = Layout(
    name="a .csv file of your own",
    tree="the columns path and label (or level0, level1... from fine to coarse), and perhaps split",
    page="docs/own_data.md",
)
SEPARATORS = ",;\t"


def read(
    root: str | Path | None, *, test_fraction: float = 0.5, val_fraction: float = 0.0, seed: int = 0
) -> ImageTable:
    """Images of one's own, listed in a file: a line an image, UTF-8, separated by commas, semicolons or tabs.

    Columns: ``path``, relative to the file; ``label``, or ``level0``, ``level1``... from the finest level to the
    coarsest, any strings, numbered in their sorted order; and perhaps ``split``, one of `SPLITS`, without which
    whole classes are drawn for testing. Other columns are passed over, but not one that looks like a misspelt name.

    Args:
        root: the file, or a folder that holds one such file.
        test_fraction: of the classes that are drawn for testing, if there are no splits.
        val_fraction: of the training classes that are drawn for ``val``, if there is none; 0 draws none.
        seed: of the draws.

    Raises:
        InputError: naming file and line, if a column is missing, a cell is empty, a split is unknown or an image is
            there twice; if the splits are incomplete.
    """
    file = _file(root)
    rows = _rows(file)
    _, header = next(rows)
    columns = {name: header.index(name) for name in ("path", *_levels(file, header), "split") if name in header}
    cells: dict[str, list[str]] = {name: [] for name in columns}
    lines: dict[str, int] = {}
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"{file}, line {line}: {len(row)} cells, the header has {len(header)}")
        for name, column in columns.items():
            cells[name].append(_cell(row[column], name, f"{file}, line {line}"))
        image = os.path.normpath(file.parent / cells["path"][-1])
        if lines.setdefault(image, line) != line:
            raise InputError(f"{file}, line {line}: {cells['path'][-1]} stands in line {lines[image]} already")
    if not lines:
        raise InputError(f"{file}: no line below the header")
    levels = tuple(name for name in columns if name not in ("path", "split"))
    labels, names = zip(*(numbered(cells[level]) for level in levels), strict=True)
    table = ImageTable(
        paths=np.array([*lines]),
        labels=np.stack(labels, axis=1),
        split=np.array(cells.get("split", [""] * len(lines))),
        levels=levels,
        names=names,
        source=str(file),
    )
    return complete_splits(table, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)


def _file(root: str | Path | None) -> Path:
    """The file itself, or the only one of a folder."""
    if root is None:
        raise InputError(f"dataset.root: give the path of {LAYOUT}")
    path = expand_home(root)
    if not path.exists():
        raise InputError(f"dataset.root={root}: no such file; give the path of {LAYOUT}")
    if not path.is_dir():
        return path
    files = [file for file in path.glob("*.csv") if not file.name.startswith(".")]
    if len(files) != 1:
        raise InputError(f"dataset.root={root}: {len(files)} .csv files in it; give the path of {LAYOUT}")
    return files[0]


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The header, then the lines that aren't empty, each with its number; the header tells the separator."""
    lines = lines_of(file)
    separator = max(SEPARATORS, key=lines[0].count)
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
    try:
        header = [cell.strip() for cell in next(reader)]
        yield 1, header
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num}: {error}") from error


def _levels(file: Path, header: list[str]) -> list[str]:
    """The names of the columns with labels, after a look at the header as a whole."""
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise InputError(f"{file}, line 1: the column {twice[0]} is there twice")
    numbers = [name for name in header if re.fullmatch(r"level\d+", name)]
    levels = [f"level{i}" for i in range(len(numbers))] or ["label"]
    missing = [name for name in ("path", *levels, "split") if name not in header]
    for other in header:
        close = difflib.get_close_matches(other.lower(), missing, n=1, cutoff=0.75)
        if close and other not in numbers:
            raise InputError(f"{file}, line 1: unknown column {other!r}, is it {close[0]!r}?")
    if missing not in ([], ["split"]):
        raise InputError(
            f"{file}, line 1: no column {missing[0]!r} among {', '.join(map(repr, header))}; give {LAYOUT}"
        )
    if numbers and "label" in header:
        raise InputError(f"{file}, line 1: the columns label and {numbers[0]}; one of the two names the finest level")
    return levels


def _cell(cell: str, column: str, where: str) -> str:
    cell = cell.strip()
    if not cell:
        raise InputError(f"{where}: an empty cell in the column {column}")
    if column == "split" and cell not in SPLITS:
        raise InputError(f"{where}: unknown split {cell!r}; the splits are {', '.join(SPLITS)}")
    return cell
