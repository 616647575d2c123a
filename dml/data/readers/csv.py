"""The reader of a user's images that a .csv file lists."""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dml.data.layout import EncodingError, Layout, read_csv_rows
from dml.data.splits import SPLIT_NAMES, complete_splits, number_classes
from dml.data.table import SPLITS, ImageTable
from dml.ops.errors import InputError

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
    "split": ("partition", "phase", "set", "subset"),
}
"""Names that columns often have elsewhere, in lower case and without blanks, hyphens and underscores."""
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4095
"""Limits of the usual file systems."""


class UnknownColumnsError(InputError):
    """An error for a file that lacks a column under the name that it should have.

    Args:
        fault: the file, and the column that it lacks.
        remedy: how the file has to be changed.
        option: option of ``dataset=csv`` that reads the file as it is, in words; the message has the remedy instead,
            because not all readers of such files take options.
    """

    def __init__(self, fault: str, remedy: str, option: str) -> None:
        super().__init__(f"{fault}; {remedy}")
        self.fault = fault
        self.option = option


def read(
    root: str | Path | None,
    *,
    test_fraction: float = 0.5,
    val_fraction: float = 0.0,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
) -> ImageTable:
    """Read images that a text file lists, one line an image, with commas, semicolons or tabs between the cells.

    The column ``path`` holds the path of the image, relative to the file. The column ``label``, or the columns
    ``level0``, ``level1`` and so on from the finest to the coarsest level, hold class names, which are numbered in
    their sorted order. The column ``split`` holds one of `SPLITS`; without it, whole classes are drawn for testing.
    Other columns are passed over, unless their name is close to one of these, which is probably a misspelling, or they
    hold splits where no column ``split`` does.

    Args:
        root: path of the file, or of a folder that holds one .csv file.
        test_fraction: fraction of the classes that is drawn for testing, if the file has no splits; 0 draws
            none.
        val_fraction: fraction of the training classes that is drawn for ``val``, if the file has no ``val``; 0 draws
            none.
        seed: seed of the draws.
        columns: the file's names of the columns, by the names above, such as ``{"path": "image", "label": "class"}``;
            columns that aren't mentioned have the names above.
        encoding: encoding of the file, such as utf-8 or cp1252.

    Raises:
        InputError: if a column is missing, a column of another name holds splits, a cell is empty, a split is unknown,
            an image is listed twice, or the splits are incomplete; the message names the file, and the line if a line
            is at fault.
    """
    try:
        table = read_listed(root, columns=columns, encoding=encoding)
    except UnknownColumnsError as error:
        raise InputError(f"{error.fault}; {error.option}") from error
    except EncodingError as error:
        if not error.likely_encoding:
            raise
        raise InputError(f"{error.fault}; dataset.reader.encoding={error.likely_encoding} reads it") from error
    if not (table.split != "").any():
        _check_unused_columns(_find_file(root), columns or {}, encoding)
    return complete_splits(table, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)


def read_listed(
    root: str | Path | None,
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
    needs_labels: bool = True,
) -> ImageTable:
    """Read the images of a file with the splits that it gives, or "" where it has none.

    The arguments are those of `read`, but error lines name no options: they say how the file has to be changed. Unless
    it needs labels, a file without a column for them gives all images a class whose name is empty.
    """
    file = _find_file(root)
    rows = read_csv_rows(file, encoding)
    _, header = next(rows)
    header = _rename_columns(file, header, columns or {})
    found = ("path", *_find_levels(file, header, needs_labels=needs_labels), "split")
    positions = {name: header.index(name) for name in found if name in header}
    cells: dict[str, list[str]] = {name: [] for name in positions}
    lines: dict[str, int] = {}
    absolute_folder = file.parent.absolute()
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"{file}, line {line}: {len(row)} {'cell' if len(row) == 1 else 'cells'}, the header has {len(header)}"
            )
        for name, column in positions.items():
            cells[name].append(_check_cell(row[column], name, f"{file}, line {line}"))
        # only this key is without "..": where a folder is a link, the path without it leads elsewhere
        image = os.path.normpath(absolute_folder / cells["path"][-1])
        if lines.setdefault(image, line) != line:
            raise InputError(f"{file}, line {line}: {cells['path'][-1]} stands in line {lines[image]} already")
    if not lines:
        raise InputError(f"{file}: no line below the header")
    if len(found) == 2:
        cells["label"] = [""] * len(lines)
    levels = tuple(name for name in cells if name not in ("path", "split"))
    labels, names = zip(*(number_classes(cells[level]) for level in levels), strict=True)
    return ImageTable(
        paths=np.array([str(file.parent / path) for path in cells["path"]]),
        labels=np.stack(labels, axis=1),
        split=np.array(cells.get("split", [""] * len(lines))),
        levels=levels,
        names=names,
        source=str(file),
    )


def _find_file(root: str | Path | None) -> Path:
    """Return the path of the file that the root names, or of the only .csv file in the root."""
    path = LAYOUT.locate(root, "FILE", "file")
    if not os.path.isdir(path):
        return path
    files = [file for file in path.glob("*.csv") if not file.name.startswith(".")]
    if len(files) == 1:
        return files[0]
    holds_folders = any(entry.is_dir() and not entry.name.startswith(".") for entry in path.iterdir())
    count = f"{len(files)} .csv files" if files else "no .csv file"
    other = "; dataset=folder reads a folder for each class" if holds_folders and not files else ""
    raise InputError(f"dataset.root={root}: {count} in it; give the path of {LAYOUT}{other}")


def _rename_columns(file: Path, header: list[str], columns: Mapping[str, str]) -> list[str]:
    """Return the header with the reader's names of the columns in place of the file's names."""
    if not isinstance(columns, Mapping):
        raise InputError(f"dataset.reader.columns={columns}: must be a mapping, such as {{path: file, label: kind}}")
    # a name such as 0 comes from the command line as a number
    columns = {str(name): str(file_name) for name, file_name in columns.items()}
    for name, file_name in columns.items():
        if not re.fullmatch(r"path|label|level\d+|split", name):
            raise InputError(
                f"dataset.reader.columns: unknown column {name!r}; path, label, level0, level1... and split are read"
            )
        if file_name not in header:
            raise InputError(f"dataset.reader.columns: {file} has no column {file_name!r} among {_quote(header)}")
    names_by_file_name = {file_name: name for name, file_name in columns.items()}
    if len(names_by_file_name) < len(columns):
        raise InputError(
            f"dataset.reader.columns={columns}: two of them are the same column; each needs one of its own"
        )
    # a column that has the name of another one, which is read in its place, is passed over
    return [names_by_file_name.get(cell, f"{cell} (unused)" if cell in columns else cell) for cell in header]


def _check_unused_columns(file: Path, columns: Mapping[str, str], encoding: str) -> None:
    """Refuse a file without a column ``split`` in which a column of another name holds two splits or more.

    Other values may stand in it only if its name is a common one for splits. If such a column were passed over, the
    draw of the classes would move images of the user's test into the training.
    """
    rows = read_csv_rows(file, encoding)
    _, header = next(rows)
    names = _rename_columns(file, header, columns)
    splits: dict[int, set[str]] = {
        column: set() for column, name in enumerate(names) if not re.fullmatch(r"path|label|level\d+", name)
    }
    for _, row in rows:
        for column in [*splits]:
            word = row[column].strip().lower()
            if word in SPLIT_NAMES:
                splits[column].add(SPLIT_NAMES[word])
            elif word and _simplify(header[column]) not in OTHER_NAMES["split"]:
                del splits[column]
        if not splits:
            return
    for column, words in splits.items():
        if len(words) > 1:
            option = ", ".join(f"{name}: {cell}" for name, cell in {**columns, "split": header[column]}.items())
            raise InputError(
                f"{file}, line 1: the column {header[column]!r} holds splits ({', '.join(sorted(words))}), but is not "
                f"called split; 'dataset.reader.columns={{{option}}}' would do, or remove the column"
            )


def _simplify(name: str) -> str:
    """Return the name of a column as `OTHER_NAMES` has it."""
    return re.sub(r"[ _-]", "", name.lower())


def _quote(header: list[str]) -> str:
    return ", ".join(map(repr, header))


def _missing_column_error(file: Path, header: list[str], missing: list[str]) -> InputError:
    """Return the error for a header that lacks columns, with the columns of other names that may be meant.

    >>> error = _missing_column_error(Path("mine.csv"), ["image", "class"], ["path", "label", "split"])
    >>> str(error)
    "mine.csv, line 1: no column 'path' among 'image', 'class'; rename image to path, class to label"
    >>> error.option
    "'dataset.reader.columns={path: image, label: class}' would do"
    """
    fault = f"{file}, line 1: no column {missing[0]!r} among {_quote(header)}"
    if len(header) == 1:
        return InputError(f"{fault}; give {LAYOUT}, with commas, semicolons or tabs between the cells of a line")
    likely = {
        name: next((cell for cell in header if _simplify(cell) in OTHER_NAMES[name]), "")
        for name in missing
        if name in OTHER_NAMES
    }
    if not all(likely.get(name) for name in missing if name != "split"):
        layout = f"give {LAYOUT}"
        return UnknownColumnsError(fault, layout, f"{layout}, or the names of your columns in dataset.reader.columns")
    pairs = {name: cell for name, cell in likely.items() if cell}
    columns = ", ".join(f"{name}: {cell}" for name, cell in pairs.items())
    renamed = ", ".join(f"{cell} to {name}" for name, cell in pairs.items())
    return UnknownColumnsError(fault, f"rename {renamed}", f"'dataset.reader.columns={{{columns}}}' would do")


def _find_levels(file: Path, header: list[str], *, needs_labels: bool) -> list[str]:
    """Return the names of the columns that hold class names, and check all column names."""
    level_columns = [name for name in header if re.fullmatch(r"level\d+", name)]
    repeated = [name for name in ("path", "label", *level_columns, "split") if header.count(name) > 1]
    if repeated:
        raise InputError(f"{file}, line 1: the column {repeated[0]} is there twice")
    levels = [f"level{i}" for i in range(len(level_columns))] or ["label"]
    missing = [name for name in ("path", *levels, "split") if name not in header]
    for name in header:
        close = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.75)
        if close and name not in level_columns:
            raise InputError(f"{file}, line 1: unknown column {name!r}, is it {close[0]!r}?")
    if not any(header):
        raise InputError(f"{file}, line 1: empty; give {LAYOUT}")
    if not needs_labels and missing[:1] == ["label"] and not {*map(_simplify, header)} & {*OTHER_NAMES["label"]}:
        return []
    if missing not in ([], ["split"]):
        raise _missing_column_error(file, header, missing)
    if level_columns and "label" in header:
        raise InputError(
            f"{file}, line 1: the columns label and {level_columns[0]}; give one of the two for the finest level"
        )
    return levels


def _check_cell(cell: str, column: str, file_and_line: str) -> str:
    """Return the cell without blanks around it, and refuse a value that its column can't have."""
    cell = cell.strip()
    if not cell:
        raise InputError(f"{file_and_line}: an empty cell in the column {column}")
    if column == "path":
        if URL.match(cell):
            raise InputError(f"{file_and_line}: {cell!r} is a URL; images have to be files, so download them first")
        _check_lengths(cell, file_and_line)
    if column == "split" and cell not in SPLITS:
        raise InputError(f"{file_and_line}: unknown split {cell!r}; the splits are {', '.join(SPLITS)}")
    return cell


def _check_lengths(path: str, file_and_line: str) -> None:
    """Refuse a path that is too long for a file system.

    Opening such a path raises another error than opening a missing file.
    """
    if len(path) <= MAX_NAME_BYTES // 4:  # a character has four bytes at most
        return
    longest = max(len(name.encode()) for name in path.split("/"))
    if longest > MAX_NAME_BYTES or len(path.encode()) > MAX_PATH_BYTES:
        raise InputError(
            f"{file_and_line}: a path of {len(path.encode()):,} bytes with a name of {longest:,}; a path has at most "
            f"{MAX_PATH_BYTES:,}, a name in it {MAX_NAME_BYTES}"
        )
