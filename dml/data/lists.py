"""What the rows of a list of images mean: a .csv or .parquet file of a user, or a pandas DataFrame."""

import difflib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dml.data.cells import name_classes, number_classes, to_text, warn_of_names
from dml.data.image_files.parts import COLUMNS, name_part, parse_edges
from dml.data.layout import Layout
from dml.data.split_names import SPLITS, read_split_columns
from dml.runtime.errors import InputError, show
from dml.runtime.files import URL
from dml.runtime.text import format_count, printable

logger = logging.getLogger(__name__)

LAYOUT = Layout(
    name="a .csv file of your own",
    tree="the columns path and label (or level0, level1... from fine to coarse), and perhaps split",
    page="docs/own_data.md",
)
_OTHER_LABELS = "class classid classname category categoryid categoryname labels labelid labelname species target"
"""Names that the column "label" often has elsewhere, in lower case and without blanks, hyphens and underscores."""
_MOST_SPLIT_VALUES = 50
"""The largest number of different values in a column that may hold splits."""

Columns = Mapping[str, str | None]
Rows = Iterator[tuple[int, Sequence[str]]]


def parse_frame(frame: Any, *, needs_labels: bool = True) -> dict[str, Any]:
    """Return the columns of an `ImageTable` of the images in a pandas DataFrame, see `parse_rows`."""
    if not hasattr(frame, "columns"):
        raise InputError(f"table={show(frame)}: must be a pandas DataFrame or a dml.ImageTable; give {LAYOUT.tree}")
    names = [*frame.columns]
    # of several columns with one name, which are passed over or refused, pandas returns a frame
    columns = [[""] * len(frame) if names.count(name) > 1 else map(to_text, frame[name]) for name in names]
    rows = chain([[str(name).strip() for name in names]], zip(*columns, strict=True))
    return parse_rows(enumerate(rows, -1), "table", None, Path(), needs_labels=needs_labels)


def parse_rows(
    rows: Rows, source: str, columns: Columns | None, folder: Path, *, needs_labels: bool = True
) -> dict[str, Any]:
    """Return the columns of an `ImageTable` of a header and numbered rows; without ``columns`` they are a frame's.

    ``columns`` are the list's names of columns by those that are read. A split is "" if nothing in the rows names it.
    """
    _, header = next(rows)
    unit, top = ("row", source) if columns is None else ("line", f"{source}, line 1")
    file_header, header = header, _rename_columns(source, [*header], columns or {})
    levels = tuple(_find_levels(top, header, needs_labels=needs_labels, is_frame=columns is None))
    positions = {name: header.index(name) for name in ("path", *levels) if name in header}
    cells: dict[str, list[str]] = {name: [] for name in ("path", *levels)}
    box_columns = [header.index(name) for name in COLUMNS if name in header]
    paths: list[str] = []
    other_cells = {column: list[str]() for column in {*range(len(header))} - {*positions.values(), *box_columns}}
    distinct_cells: dict[int, dict[str, str]] = {column: {} for column in other_cells}
    lines: dict[str, int] = {}
    absolute_folder = folder.absolute()
    for line, row in rows:
        place = f"{source}, {unit} {line}"
        if len(row) != len(header):
            raise InputError(f"{place}: {format_count(len(row), 'cell')}, the header has {len(header)}")
        if not any(cell.strip() for cell in row):
            continue
        for name, column in positions.items():
            cells[name].append(_check_cell(row[column], name, place, is_needed=needs_labels or name == "path"))
        for column in [*other_cells]:
            cell = row[column].strip()
            other_cells[column].append(distinct_cells[column].setdefault(cell, cell))  # one object for all rows
            if len(distinct_cells[column]) > _MOST_SPLIT_VALUES and header[column] != "split":
                del other_cells[column]
        edges = parse_edges([row[column] for column in box_columns], place)
        paths.append(name_part(str(folder / cells["path"][-1]), edges))
        # only this key is without "..": where a folder is a link, the path without it leads elsewhere
        image = name_part(os.path.normpath(absolute_folder / cells["path"][-1]), edges)
        if lines.setdefault(image, line) != line:
            raise InputError(f"{place}: {cells['path'][-1]} stands in {unit} {lines[image]} already")
    if not lines:
        raise InputError(f"{source}: no {unit} below the header")
    classes = (name_classes(cells[level] or [""] * len(lines)) for level in levels)
    numbered, names = zip(*map(number_classes, classes), strict=True)
    labels = np.stack(numbered, axis=1)
    warn_of_names(labels, names, source)
    by_name = {file_header[column]: values for column, values in other_cells.items()}
    split = np.array(_read_splits(source, unit, by_name, [*lines.values()], columns))
    parsed = {"paths": np.array(paths), "labels": labels, "split": split}
    return {**parsed, "levels": levels, "names": names, "source": source}


def _read_splits(
    source: str, unit: str, cells: Mapping[str, list[str]], lines: Sequence[int], columns: Columns | None
) -> list[str]:
    """Return the split of each row by its cells in the columns that are no path or label; "" if none names it."""
    chosen = (columns or {}).get("split", "")
    if chosen is None:
        return [""] * len(lines)
    name, words, splits = read_split_columns(cells, str(chosen))
    option = ", ".join(f"{name}: {cell}" for name, cell in {**(columns or {}), "split": "null"}.items())
    remedy = f"'dataset.reader.columns={{{option}}}' passes over it" if columns is not None else "drop it to draw them"
    if "" in splits:
        row = splits.index("")
        known = f"unknown split {words[row]!r}; the splits are {', '.join(SPLITS)}; write one of them into"
        fault = known if words[row] else "an empty cell in"
        raise InputError(f"{source}, {unit} {lines[row]}: {fault} the column {name}, or {remedy}")
    if name not in ("", "split", str(chosen)):
        logger.warning("%s: the splits are those of the column %s; %s", *map(printable, (source, name, remedy)))
    return splits or [""] * len(lines)


def _rename_columns(source: str, header: list[str], columns: Columns) -> list[str]:
    """Return the header with the reader's names of the columns in place of the file's names."""
    option = "dataset.reader.columns"
    if not isinstance(columns, Mapping):
        raise InputError(f"{option}={columns}: must be a mapping, such as {{path: file, label: kind}}")
    # a name such as 0 comes from the command line as a number
    columns = {str(name): str(file_name) for name, file_name in columns.items() if file_name is not None}
    for name, file_name in columns.items():
        if not re.fullmatch(r"path|label|level\d+|split|[xy]_[12]", name):
            raise InputError(f"{option}: unknown column {name!r}; path, label, level0..., split and x_1... are read")
        if file_name not in header:
            raise InputError(f"{option}: {source} has no column {file_name!r} among {_quote(header)}")
    names_by_file_name = {file_name: name for name, file_name in columns.items()}
    if len(names_by_file_name) < len(columns):
        raise InputError(f"{option}={columns}: two of them are the same column; each needs one of its own")
    # a column that has the name of another one, which is read in its place, is passed over
    return [names_by_file_name.get(cell, f"{cell} (unused)" if cell in columns else cell) for cell in header]


def _quote(header: list[str]) -> str:
    return ", ".join(map(repr, header))


def _find_levels(place: str, header: list[str], *, needs_labels: bool, is_frame: bool) -> list[str]:
    """Return the names of the columns of class names, and check all column names; "label" may be none of them."""
    level_columns = [name for name in header if re.fullmatch(r"level\d+", name)]
    repeated = [name for name in ("path", "label", *level_columns, "split", *COLUMNS) if header.count(name) > 1]
    if repeated:
        raise InputError(f"{place}: the column {repeated[0]} is there twice")
    levels = [f"level{i}" for i in range(len(level_columns))] or ["label"]
    missing = [name for name in ("path", *levels, "split", *COLUMNS) if name not in header]
    for name in header:
        close = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.75)
        if close and name not in level_columns:
            raise InputError(f"{place}: unknown column {name!r}, is it {close[0]!r}?")
    if not any(header):
        raise InputError(f"{place}: empty; give {LAYOUT}")
    missing = [name for name in missing if name != "split" and (name not in COLUMNS or {*COLUMNS} & {*header})]
    simplified = {re.sub(r"[ _-]", "", name.lower()) for name in header}
    has_no_labels = missing == ["label"] and simplified.isdisjoint(_OTHER_LABELS.split())
    if missing and (needs_labels or not has_no_labels):
        fault = f"{place}: no column {missing[0]!r} among {_quote(header)}"
        option = f"rename one, or give {{{missing[0]}: NAME}} in dataset.reader.columns, for {LAYOUT}"
        remedy = f"give {LAYOUT.tree}" if is_frame else f"{option}, with commas, semicolons or tabs between the cells"
        raise InputError(f"{fault}; {remedy}")
    if level_columns and "label" in header:
        raise InputError(f"{place}: the columns label and {level_columns[0]}; give one of the two for the finest level")
    return levels


def _check_cell(cell: str, column: str, place: str, *, is_needed: bool) -> str:
    """Return the cell without blanks around it, and refuse a value that its column can't have."""
    cell = cell.strip()
    if is_needed and not cell:
        raise InputError(f"{place}: an empty cell in the column {column}")
    if "\0" in cell:  # NumPy would take it off the end
        raise InputError(f"{place}: a NUL byte in the column {column}")
    if column == "path" and URL.match(cell):
        raise InputError(f"{place}: {cell!r} is a URL; images have to be files, so download them first")
    return cell
