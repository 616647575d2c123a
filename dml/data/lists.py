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
from dml.data.contents import BOX_COLUMNS, name_part, parse_edges
from dml.data.layout import Layout
from dml.data.split_names import SPLITS, read_split_columns
from dml.runtime.errors import InputError, show
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
    levels = _find_levels(top, header, needs_labels=needs_labels, is_frame=columns is None)
    positions = {name: header.index(name) for name in ("path", *levels) if name in header}
    cells: dict[str, list[str]] = {name: [] for name in ("path", *levels)}
    box_columns = [header.index(name) for name in BOX_COLUMNS if name in header]
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
            cells[name].append(row[column].strip())
            if not cells[name][-1] and (needs_labels or name == "path"):
                raise InputError(f"{place}: an empty cell in the column {name}")
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
    # a name such as 0 comes from the command line as a number
    columns = {str(name): str(file_name) for name, file_name in columns.items() if file_name is not None}
    names_by_file_name = {file_name: name for name, file_name in columns.items()}
    fault = "" if len(names_by_file_name) == len(columns) else "two of them are the same column"
    for name, file_name in columns.items():
        if not re.fullmatch(r"path|label|level\d+|split|[xy]_[12]", name):
            fault = f"unknown column {name!r}; path, label, level0..., split and x_1... are read"
        elif file_name not in header:
            fault = f"{source} has no column {file_name!r} among {_quote(header)}"
    if fault:
        raise InputError(f"dataset.reader.columns: {fault}")
    # a column that has the name of another one, which is read in its place, is passed over
    return [names_by_file_name.get(cell, f"{cell} (unused)" if cell in columns else cell) for cell in header]


def _quote(header: list[str]) -> str:
    return ", ".join(map(repr, header))


def _list_level_columns(header: list[str]) -> list[str]:
    return [name for name in header if re.fullmatch(r"level\d+", name)]


def _find_levels(place: str, header: list[str], **options: bool) -> tuple[str, ...]:
    """Return the names of the columns of class names, of which there may be none by "label"."""
    if fault := next(_find_header_faults(header, **options), ""):
        raise InputError(f"{place}: {fault}")
    return tuple(f"level{i}" for i in range(len(_list_level_columns(header)))) or ("label",)


def _find_header_faults(header: list[str], *, needs_labels: bool, is_frame: bool) -> Iterator[str]:
    """Yield what is wrong with the names of columns; a name close to one that is lacking is probably a misspelling."""
    if not any(header):
        yield f"empty; give {LAYOUT}"
    level_columns = _list_level_columns(header)
    levels = [f"level{i}" for i in range(len(level_columns))] or ["label"]
    known = ["path", *levels, "split", *BOX_COLUMNS]
    for name in known:
        if header.count(name) > 1:
            yield f"the column {name} is there twice"
    missing = [name for name in known if name not in header]
    for name in header:
        close = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.75)
        if close and name not in level_columns:
            yield f"unknown column {name!r}, is it {close[0]!r}?"
    optional = {"split", *BOX_COLUMNS} if {*BOX_COLUMNS}.isdisjoint(header) else {"split"}
    missing = [name for name in missing if name not in optional]
    simplified = {re.sub(r"[ _-]", "", name.lower()) for name in header}
    has_no_labels = missing == ["label"] and simplified.isdisjoint(_OTHER_LABELS.split())
    if missing and (needs_labels or not has_no_labels):
        option = f"rename one, or give {{{missing[0]}: NAME}} in dataset.reader.columns, for {LAYOUT}"
        remedy = f"give {LAYOUT.tree}" if is_frame else f"{option}, with commas, semicolons or tabs between the cells"
        yield f"no column {missing[0]!r} among {_quote(header)}; {remedy}"
    if level_columns and "label" in header:
        yield f"the columns label and {level_columns[0]}; give one of the two for the finest level"
