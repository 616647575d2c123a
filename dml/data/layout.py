"""The files that a data set's folder has to hold, and parsers of its lists whose errors name file and line."""

import codecs
import csv
import difflib
import io
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dml.data.cells import to_text
from dml.data.contents import read_list_bytes
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.text import printable

SEPARATORS = ",;\t"
"""The characters that may stand between the cells of a .csv file."""


@dataclass(frozen=True)
class Layout:
    """The official layout of a data set, which error lines describe to a user whose folder differs from it."""

    name: str
    tree: str  # the files and folders that the root holds, in words
    page: str  # address of the page that publishes the data set

    def root(self, root: str | Path | None, kind: str = "folder") -> Path:
        """Return ``dataset.root``, with ``~`` expanded, which is a "folder" or a "file"."""
        noun = "folder" if kind == "folder" else "path"
        if root is None:
            raise InputError(f"dataset.root: no value; give dataset.root={kind.upper()}, the {noun} of {self}")
        path = expand_home(root)
        # unlike Path.is_dir, os.path.isdir doesn't fail for names that are too long and folders that may not be read
        if not (os.path.isdir(path) if kind == "folder" else os.path.exists(path)):
            # a run stores the path as it was given, so the line says where a relative one begins
            start = "" if path.is_absolute() else f" in {printable(os.getcwd())}"
            fault = f"no such {kind}{start}{name_similar(path)}"
            raise InputError(f"dataset.root={root}: {fault}; give the {noun} of {self}")
        return path

    def find(self, root: Path, *candidates: str) -> Path:
        """Return the path of the first of the candidates, files or folders relative to the root, that exists."""
        for candidate in candidates:
            if os.path.exists(root / candidate):
                return root / candidate
        raise InputError(f"dataset.root={root}: no {' or '.join(candidates)} in it; give the folder of {self}")

    def __str__(self) -> str:
        return f"{self.name}, which holds {self.tree} ({self.page})"


def name_similar(path: Path) -> str:
    """Name the entry beside a missing path whose name is most similar: ", but there is mine"; "" without one."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
    except OSError:  # the folder above is missing as well, or may not be listed
        return ""
    similar = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f", but there is {printable(path.with_name(similar[0]))}" if similar else ""


def read_list_lines(path: Path) -> list[str]:
    """Read the lines of a text file in UTF-8, with any line ends and with or without a byte order mark."""
    return _read_list_text(path, "utf-8").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def read_csv_rows(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the line and the cells of the header of a .csv file, and then of each line that isn't empty.

    The separator is the one of `SEPARATORS` that is most frequent in the header. Within quotes, the characters of a
    line end are part of the cell. The first row of a .parquet file is line 2.
    """
    if path.suffix.lower() == ".parquet":
        yield from enumerate(_read_parquet_rows(path), 1)
        return
    lines = io.StringIO(_read_list_text(path, encoding), newline="").readlines() or [""]
    reader = csv.reader(lines, delimiter=max(SEPARATORS, key=lines[0].count), strict=True)
    try:
        yield 1, [cell.strip() for cell in next(reader)]
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from error


def _read_parquet_rows(path: Path) -> Iterator[list[str]]:
    """Yield the names of the columns of a .parquet file that hold no lists, and then the texts of each row."""
    try:
        file = pq.ParquetFile(pa.BufferReader(read_list_bytes(path)))
        table = file.read([field.name for field in file.schema_arrow if not pa.types.is_nested(field.type)])
        columns = [[*map(to_text, column.to_pylist())] for column in table.columns]
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a Parquet file of texts ({' '.join(str(error).split())})") from error
    yield table.column_names
    yield from map(list, zip(*columns, strict=True))


def _read_list_text(path: Path, encoding: str) -> str:
    """Return the text of a file as it is, but without a byte order mark."""
    content = read_list_bytes(path)
    try:
        return content.decode("utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding)
    except (UnicodeError, LookupError) as error:
        fault, likely_encoding = str(error), _guess_encoding(content)
        if isinstance(error, UnicodeError):
            fault = f"not a text file ({getattr(error, 'reason', error)})"
        if isinstance(error, UnicodeError) and likely_encoding:
            fault = (
                f"not in {encoding.upper()}, it seems to be in {likely_encoding}; store it in {encoding.upper()} "
                f"(for dataset=csv, dataset.reader.encoding={likely_encoding} reads it)"
            )
        raise InputError(f"{path}: {fault}") from error


def _guess_encoding(content: bytes) -> str:
    """Guess the encoding of a text; an empty string if it looks like no text."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    for encoding in ("utf-16",) if is_utf16 else ("utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeError):
            text = content.decode(encoding).removeprefix("\ufeff")
            if all(character.isprintable() or character.isspace() for character in text):
                return encoding
    return ""


def read_list_rows(
    path: Path, columns: int, *, skip: int = 0, header: str = "", separator: str | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield file and line, for error lines, and the cells of each line of a list, of which the last is the rest.

    Empty lines, and ``skip`` lines above the first row, are passed over; ``header`` is what the last of these must
    hold. Without a separator, any run of blanks is one.
    """
    lines = read_list_lines(path)
    file_header = " ".join("".join(lines[skip - 1 : skip]).split())
    if header and file_header != header:
        raise InputError(f"{path}, line {skip}: {file_header!r}, expected the header {header!r}")
    for number, line in enumerate(lines[skip:], skip + 1):
        if not line.strip():
            continue
        cells = line.strip().split(separator, columns - 1)
        if len(cells) < columns:
            raise InputError(f"{path}, line {number}: {line.strip()!r}, expected {columns} columns")
        yield f"{path}, line {number}", cells


def parse_whole_number(
    cell: str, place: str | Path, meaning: str, *, lowest: int = 1 - 2**31, highest: int = 2**31 - 1
) -> int:
    """Parse a cell as an integer from ``lowest`` to ``highest``; ``place`` and ``meaning`` are for the error line."""
    number = int(cell) if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", cell) else None
    if number is None or not lowest <= number <= highest:
        raise InputError(f"{place}: {meaning} {cell!r}, expected a whole number from {lowest:,} to {highest:,}")
    return number
