"""Functions that read and write the prepared files of a data set, which are in its ``.dml`` folder.

A data set may come from a stranger, with a ``.dml`` folder whose links lead to other files of the user. These functions
therefore follow no links. Since a disk may damage a file, Parquet files and lines of JSON also hold a CRC-32 of their
content, which is compared before they are parsed.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.locks import holding
from dml.runtime.reading import parse_json

FOLDER = ".dml"
CHECKSUM = b"dml.crc32="
"""The bytes before the checksum in a Parquet file's footer.

The checksum is 8 hexadecimal digits: the CRC-32 of the file in which these digits are zeros.
"""
UNSET = b"00000000"

Warn = Callable[[str], None]
"""A function that is called with the line of a warning."""


class UnfitFileError(InputError):
    """An error for a prepared file that can't be used; code that catches it adds to the message what a user can do."""


def refuse_links(folder: Path) -> None:
    """Make sure that a folder of prepared files, and the ``.dml`` folder around it, are no links and hold none."""
    for checked in [folder.parent, folder] if folder.parent.name == FOLDER else [folder]:
        _refuse_link(checked)
        try:
            links = sorted(entry.path for entry in os.scandir(checked) if entry.is_symlink())
        except OSError:  # a missing or unreadable folder is an error only for the function that reads a file in it
            continue
        for link in links:
            _refuse_link(Path(link))


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise InputError(
            f"{path}: is a link to {os.readlink(path)}, and prepared files are never read or written through links: "
            "delete it, or give data.cache=FOLDER, or null for none"
        )


def _refuse_other(path: Path) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path}: stands where a prepared file belongs and isn't a file; delete it")


def make_writable_folder(folder: Path) -> None:
    """Make a folder of prepared files, if there is none."""
    refuse_links(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        raise InputError(f"{folder}: can't be written to; give data.cache=FOLDER, also to train.py")


def open_file(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open an existing regular file in binary mode, or raise a FileNotFoundError, UnfitFileError or InputError."""
    _refuse_link(path)
    _refuse_other(path)
    try:  # O_NOFOLLOW refuses a link that was made after the check above
        descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except OSError as error:
        raise UnfitFileError(f"{path}: can't be read ({error.strerror})") from error
    return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "ab" if flags & os.O_APPEND else "rb")


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yield a file to write to, which then replaces ``path``, see `replacing`."""
    _refuse_other(path)
    with replacing(path) as partial:
        yield partial


def delete_file(path: Path) -> None:
    """Delete a file if it exists; of a link, delete only the link itself."""
    _refuse_other(path)
    path.unlink(missing_ok=True)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table to a Parquet file whose footer holds a checksum of the whole file, and replace ``path`` by it."""
    metadata = {**(table.schema.metadata or {}), b"checksum": CHECKSUM + UNSET}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    content = sink.getvalue().to_pybytes()
    head, _, tail = content.rpartition(CHECKSUM + UNSET)
    checksum = f"{crc32(content):08x}".encode()
    with replacing_file(path) as partial:
        partial.write_bytes(head + CHECKSUM + checksum + tail)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file that `write_parquet` wrote, or raise a FileNotFoundError, or an UnfitFileError for another one."""
    with open_file(path) as file:
        content = _read_all(path, file)
    start = content.rfind(CHECKSUM) + len(CHECKSUM)
    if start < len(CHECKSUM):
        raise UnfitFileError(f"{path}: has no checksum: damaged, or made by another version")
    view = memoryview(content)
    end = start + len(UNSET)
    if f"{crc32(view[end:], crc32(UNSET, crc32(view[:start]))):08x}".encode() != view[start:end]:
        raise UnfitFileError(f"{path}: is damaged (its checksum differs)")
    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read()  # pq.read_table would import pandas
        return table if columns is None else table.select(columns)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UnfitFileError(f"{path}: is damaged ({type(error).__name__})") from error


def read_parquet_if_fit(
    path: Path, warn: Warn, done_again: str, columns: Sequence[str] | None = None
) -> pa.Table | None:
    """Read a file as `read_parquet` does; None for a missing one, and after a warning for an unfit one."""
    try:
        return read_parquet(path, columns)
    except FileNotFoundError:
        return None
    except UnfitFileError as error:
        warn(f"{error}; its images are {done_again}")
        return None


def _read_all(path: Path, file: BinaryIO) -> bytes:
    try:
        return file.read()
    except OSError as error:
        raise UnfitFileError(f"{path}: can't be read ({error.strerror})") from error


def checksummed_line(value: Any) -> str:
    """Format a line of JSON, line break included, that holds the value and its checksum."""
    return json.dumps({"value": value, "crc32": _compute_checksum(value)}) + "\n"


def read_lines(path: Path, warn: Warn, done_again: str) -> list[Any]:
    """Read the values of a file whose lines `checksummed_line` formatted; a missing or unfit file holds none."""
    try:
        with open_file(path) as file:
            lines = [line for line in _read_all(path, file).split(b"\n") if line]
    except FileNotFoundError:
        return []
    except UnfitFileError as error:
        warn(f"{error}; its images are {done_again}")
        return []
    values = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # the line was cut off by a kill, or is damaged
            record = parse_json(line)
            if record["crc32"] == _compute_checksum(record["value"]):
                values.append(record["value"])
    if damaged := len(lines) - len(values):
        warn(f"{path}: {damaged} lines were cut short or damaged; their images are {done_again}")
    return values


def _compute_checksum(value: Any) -> int:
    return crc32(json.dumps(value).encode())


@contextmanager
def hold_preparation_lock(folder: Path) -> Iterator[None]:
    """Hold the lock ``<folder>.lock``, with which one process at a time prepares a data set; readers need no lock."""
    path = folder.with_name(f"{folder.name}.lock")
    refuse_links(folder)
    _refuse_link(path)
    with ExitStack() as stack:
        try:
            if path.exists() and path.stat().st_nlink > 1:  # the lock would overwrite a file that has a second name
                path.unlink()
            stack.enter_context(holding(path, name=folder, does="is preparing it; try again when that has ended"))
        except OSError as error:
            raise InputError(f"{path}: can't be written to ({error.strerror}); data.cache=FOLDER is another") from error
        try:
            yield
        finally:
            os.truncate(path, 0)  # the file held the name of this process, which no longer prepares the data set
