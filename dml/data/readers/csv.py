"""The reader of a user's images that a .csv or .parquet file or a pandas DataFrame lists."""

import difflib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dml.data.image_files.parts import COLUMNS, name_part, parse_edges
from dml.data.image_listing import is_passed_over
from dml.data.layout import Layout, read_csv_rows, to_text
from dml.data.splits import complete_splits, name_classes, number_classes, read_split_columns, warn_of_names
from dml.data.table import SPLITS, ImageTable
from dml.runtime.errors import InputError
from dml.runtime.paths import URL
from dml.runtime.text import format_count, printable

logger = logging.getLogger(__name__)

LAYOUT = Layout(
    name="a .csv file of your own",
    tree="the columns path and label (or level0, level1... from fine to coarse), and perhaps split",
    page="docs/own_data.md",
)
OTHER_NAMES = {
    "path": (
        *("image", "images", "imagefile", "imagename", "imagepath", "img", "imgpath"),
        *("file", "filename", "filepath", "photo", "picture"),
    ),
    "label": (
        *("class", "classid", "classname", "category", "categoryid", "categoryname"),
        *("labels", "labelid", "labelname", "species", "target"),
    ),
}
"""Names that columns often have elsewhere, in lower case and without blanks, hyphens and underscores."""
Columns = Mapping[str, str | None]
Rows = Iterator[tuple[int, Sequence[str]]]
MOST_SPLIT_VALUES = 50
"""The largest number of different values in a column that may hold splits."""


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
    ``level0``, ``level1`` and so on from the finest to the coarsest level, hold `dml.data.splits.name_classes`, which
    are numbered in their sorted order. The column ``split`` says the split, or one that
    `dml.data.splits.read_split_columns` finds.
    Without one, and without folders of splits in the paths, whole classes are drawn for testing. Other columns are
    passed over, unless their name is close to one of these, which is probably a misspelling.

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


def read_frame(frame: Any) -> ImageTable:
    """Read the images of a pandas DataFrame without drawing splits, see `ImageTable.from_frame`."""
    names = [*frame.columns]
    # of several columns with one name, which are passed over or refused, pandas returns a frame
    columns = [[""] * len(frame) if names.count(name) > 1 else map(to_text, frame[name]) for name in names]
    rows = chain([[str(name).strip() for name in names]], zip(*columns, strict=True))
    return _make_table(enumerate(rows, -1), "table", None, Path())


def _read_file(root: str | Path | None, columns: Columns, encoding: str, *, needs_labels: bool = True) -> ImageTable:
    """Return the table of a file, with "" as the split where the file has none."""
    file = _find_file(root)
    rows = read_csv_rows(file, encoding)
    return _make_table(rows, str(file), columns, file.parent, needs_labels=needs_labels)


def _make_table(
    rows: Rows, source: str, columns: Columns | None, folder: Path, *, needs_labels: bool = True
) -> ImageTable:
    """Return the table of a header and numbered rows; without ``columns``, they are those of a frame."""
    _, header = next(rows)
    unit, top = ("row", source) if columns is None else ("line", f"{source}, line 1")
    file_header, header = header, _rename_columns(source, [*header], {} if columns is None else columns)
    levels = tuple(_find_levels(top, header, needs_labels=needs_labels, is_frame=columns is None))
    positions = {name: header.index(name) for name in ("path", *levels) if name in header}
    cells: dict[str, list[str]] = {name: [] for name in ("path", *levels)}
    box_columns = [header.index(name) for name in COLUMNS if name in header]
    paths: list[str] = []
    other_cells = {column: list[str]() for column in {*range(len(header))} - {*positions.values(), *box_columns}}
    distinct_cells: dict[int, dict[str, str]] = {column: {} for column in other_cells}
    lines: dict[str, int] = {}
    absolute_folder, where = folder.absolute(), f"{source}, {unit}"
    for line, row in rows:
        place = f"{where} {line}"
        if len(row) != len(header):
            raise InputError(f"{place}: {format_count(len(row), 'cell')}, the header has {len(header)}")
        if not any(cell.strip() for cell in row):
            continue
        for name, column in positions.items():
            cells[name].append(_check_cell(row[column], name, place, is_needed=needs_labels or name == "path"))
        for column in [*other_cells]:
            cell = row[column].strip()
            other_cells[column].append(distinct_cells[column].setdefault(cell, cell))  # one object for all rows
            if len(distinct_cells[column]) > MOST_SPLIT_VALUES and header[column] != "split":
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
    labels, names = zip(*map(number_classes, classes), strict=True)
    by_name = {file_header[column]: values for column, values in other_cells.items()}
    table = ImageTable(
        paths=np.array(paths),
        labels=np.stack(labels, axis=1),
        split=np.array(_read_splits(source, unit, by_name, [*lines.values()], columns)),
        levels=levels,
        names=names,
        source=source,
    )
    warn_of_names(table.labels, table.names, source)
    return table


def _read_splits(
    source: str, unit: str, cells: Mapping[str, list[str]], lines: Sequence[int], columns: Columns | None
) -> list[str]:
    """Return the split of each row by its cells in the columns that are no path or label; "" if none names it."""
    renamed = columns or {}
    if renamed.get("split", "") is None:
        return [""] * len(lines)
    chosen = str(renamed.get("split", ""))
    name, words, splits = read_split_columns(cells, chosen)
    option = ", ".join(f"{name}: {cell}" for name, cell in {**renamed, "split": "null"}.items())
    remedy = f"'dataset.reader.columns={{{option}}}' passes over it" if columns is not None else "drop it to draw them"
    if "" in splits:
        row = splits.index("")
        known = f"unknown split {words[row]!r}; the splits are {', '.join(SPLITS)}; write one of them into"
        fault = known if words[row] else "an empty cell in"
        raise InputError(f"{source}, {unit} {lines[row]}: {fault} the column {name}, or {remedy}")
    if name not in ("", "split", chosen):
        logger.warning("%s: the splits are those of the column %s; %s", *map(printable, (source, name, remedy)))
    return splits or [""] * len(lines)


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


def _rename_columns(source: str, header: list[str], columns: Columns) -> list[str]:
    """Return the header with the reader's names of the columns in place of the file's names."""
    if not isinstance(columns, Mapping):
        raise InputError(f"dataset.reader.columns={columns}: must be a mapping, such as {{path: file, label: kind}}")
    # a name such as 0 comes from the command line as a number
    columns = {str(name): str(file_name) for name, file_name in columns.items() if file_name is not None}
    for name, file_name in columns.items():
        if not re.fullmatch(r"path|label|level\d+|split|[xy]_[12]", name):
            raise InputError(
                f"dataset.reader.columns: unknown column {name!r}; path, label, level0..., split and x_1... are read"
            )
        if file_name not in header:
            raise InputError(f"dataset.reader.columns: {source} has no column {file_name!r} among {_quote(header)}")
    names_by_file_name = {file_name: name for name, file_name in columns.items()}
    if len(names_by_file_name) < len(columns):
        raise InputError(
            f"dataset.reader.columns={columns}: two of them are the same column; each needs one of its own"
        )
    # a column that has the name of another one, which is read in its place, is passed over
    return [names_by_file_name.get(cell, f"{cell} (unused)" if cell in columns else cell) for cell in header]


def _simplify(name: str) -> str:
    return re.sub(r"[ _-]", "", name.lower())


def _quote(header: list[str]) -> str:
    return ", ".join(map(repr, header))


def _missing_column_error(place: str, header: list[str], missing: list[str], *, is_frame: bool) -> InputError:
    """Return the error for a header that lacks columns, with the columns of other names that may be meant."""
    fault = f"{place}: no column {missing[0]!r} among {_quote(header)}"
    others = {name: [cell for cell in header if _simplify(cell) in OTHER_NAMES.get(name, ())] for name in missing}
    if len(header) == 1 and not is_frame:
        return InputError(f"{fault}; give {LAYOUT}, with commas, semicolons or tabs between the cells of a line")
    if not all(others.values()):
        option = "for dataset=csv, or the names of your columns in dataset.reader.columns"
        return InputError(f"{fault}; give {LAYOUT.tree if is_frame else f'{LAYOUT} ({option})'}")
    columns = ", ".join(f"{name}: {cells[0]}" for name, cells in others.items())
    renamed = ", ".join(f"{cells[0]} to {name}" for name, cells in others.items())
    option = "" if is_frame else f" (for dataset=csv, 'dataset.reader.columns={{{columns}}}' would do)"
    return InputError(f"{fault}; rename {renamed}{option}")


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
    has_no_labels = missing == ["label"] and {*map(_simplify, header)}.isdisjoint(OTHER_NAMES["label"])
    if missing and (needs_labels or not has_no_labels):
        raise _missing_column_error(place, header, missing, is_frame=is_frame)
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
