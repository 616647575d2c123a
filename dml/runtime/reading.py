"""Safe reading: only regular files, up to a limit, plain values, and what is as it was written, by its checksum."""

import json
import os
import stat
from collections.abc import Iterable, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import yaml

from dml.runtime.files import replacing

FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
"""How files are opened: a pipe that has replaced one since it was looked at isn't waited for."""

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast as Python's; a PyYAML that was built without it has Python's alone."""

MOST_BYTES = 2**26  # in a YAML or JSON file
MOST_CHARACTERS = 2**18  # in a YAML text; a run's configuration has 20,000
MOST = 500_000  # values in a JSON text
DEEPEST = 100  # lists and mappings within each other
TOO_DEEP = f"more than {DEEPEST} lists and mappings within each other"
LONGEST_NUMBER = 1_000  # characters of a number in a YAML text: one such as 1:59:59 takes time that is quadratic


class RefusedFileError(Exception):
    """An error for a file that isn't regular, or larger than a limit; the remedy is an option that raises the limit."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason, self.remedy = reason, remedy


def check_regular(path: str | Path) -> os.stat_result:
    """Refuse what isn't a regular file, after following links -> what the system knows of it.

    The file isn't opened, because opening a pipe would wait for its other end.
    """
    if "\0" in str(path):
        raise RefusedFileError("a NUL byte, which no file's name holds")
    return _check_kind(os.stat(path))


def _check_kind(state: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(state.st_mode):
        raise RefusedFileError(f"{KINDS.get(stat.S_IFMT(state.st_mode), 'a special file')}, not a regular file")
    return state


def read_regular(path: str | Path, max_bytes: int, option: str) -> bytes:
    """Read a regular file of at most ``max_bytes``, which the key ``option`` sets; a larger one is refused."""
    check_regular(path)
    descriptor = os.open(path, FLAGS)
    try:  # reading through a file object would take twice as long
        size = _check_kind(os.fstat(descriptor)).st_size  # another file may have replaced the one above
        check_size(size, max_bytes, option)
        parts, size = [os.read(descriptor, size + 1)], 0
        while parts[-1]:  # a file may be growing, hold more than it says, as in /proc, or be delivered in parts
            size += len(parts[-1])
            check_unpacked(size, max_bytes, option)
            parts.append(os.read(descriptor, 1 << 20))
        return b"".join(parts)
    finally:
        os.close(descriptor)


def check_size(size: int, max_bytes: int, option: str) -> None:
    """Refuse a content of more than ``max_bytes``, which the key ``option`` sets."""
    if size > max_bytes:
        raise RefusedFileError(f"{size:,} bytes, at most {max_bytes:,} are read", f"{option}={size} reads it")


def check_unpacked(size: int, max_bytes: int, option: str) -> None:
    """Do as `check_size` for a content of which ``size`` bytes have been read or unpacked, and more may follow."""
    if size > max_bytes:
        raise RefusedFileError(f"more than {max_bytes:,} bytes", f"{option} with a larger number reads it")


def read_bounded(path: Path) -> bytes:
    """Read a file whose content is a YAML or JSON text; a ValueError tells that it isn't regular, or too large."""
    try:
        return read_regular(path, MOST_BYTES, "")
    except RefusedFileError as error:
        raise ValueError(error.reason) from error


def parse_yaml(text: str, *, with_aliases: bool = False) -> Any:
    """Return the content of a YAML text: plain values, lists and dictionaries.

    Args:
        text: text within the limits above; others, and dates that don't exist, raise a ValueError.
        with_aliases: whether it may hold aliases and merge keys, with which a short text becomes any number of values:
            the project's own files do, a stranger's never.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"more than {MOST_CHARACTERS:,} characters")
    depth = 0
    for event in yaml.parse(text, LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(TOO_DEEP)
        word = event.value if isinstance(event, yaml.ScalarEvent) and event.implicit[0] else ""
        if not with_aliases and (isinstance(event, yaml.AliasEvent) or word == "<<"):
            raise ValueError("an alias or a merge key; the values have to stand there themselves")
        if len(word) > LONGEST_NUMBER and word[0] in "+-.0123456789":
            raise ValueError(f"a number of more than {LONGEST_NUMBER:,} characters")
    return yaml.load(text, LOADER)  # noqa: S506  both loaders are safe


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text; a ValueError tells that it is none, or isn't as `check_plain` wants it."""
    separators = text.count(",") if isinstance(text, str) else text.count(b",")
    if separators > 2 * MOST:  # some may stand in texts; values take much more memory than their text
        raise ValueError(f"more than {MOST:,} values")
    try:
        return check_plain(json.loads(text))
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


def check_plain(content: Any) -> Any:
    """Return values out of a file if a program can walk through them: they are bounded, and none contains itself.

    A value that several places share counts in each of them.
    """
    count, depth, level = 1, 0, [content]
    while level := [node for node in level if isinstance(node, Mapping | list | tuple | set)]:
        count, depth = count + sum(map(len, level)), depth + 1
        if depth > DEEPEST or count > MOST:
            raise ValueError(TOO_DEEP if depth > DEEPEST else f"more than {MOST:,} values")
        level = [value for node in level for value in (node.values() if isinstance(node, Mapping) else node)]
    return content


CHECKSUMS = "sha256"
"""The key of a description under which the checksums stand, those of files beside it and its own."""

ZIP_MAGIC = b"PK\x03\x04"


class DamageError(ValueError):
    """An error for a file that isn't as it was written; the message describes the damage, but doesn't name the file."""


def file_checksum(path: Path) -> str:
    """Compute the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def rows_checksum(rows: Mapping[int, Mapping[str, Any]]) -> str:
    """Compute the SHA-256 of rows of values by step, in hexadecimal; the order of the columns doesn't matter."""
    return _checksum({step: {name: str(value) for name, value in row.items()} for step, row in rows.items()})


def _checksum(values: Any) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write_manifest(path: Path, values: Mapping[str, Any], checksums: Mapping[str, str]) -> None:
    """Write the JSON file that describes a folder: plain values, and `file_checksum` of its other files by name."""
    own = _checksum({**values, CHECKSUMS: dict(checksums)})
    text = json.dumps({**values, CHECKSUMS: {**checksums, path.name: own}}, indent=2)
    with replacing(path, on_disk=True) as partial:
        partial.write_text(f"{text}\n", encoding="utf-8")


def read_manifest(path: Path, file_format: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the values, of this "format", and the checksums of the other files that `write_manifest` wrote."""
    values = parse_json(read_bounded(path))
    try:
        if (found := values.get("format")) != file_format:
            raise DamageError(f"of format {found!r}, not {file_format}")
        checksums = values.pop(CHECKSUMS)
        own = checksums.pop(path.name)
    except (AttributeError, KeyError, TypeError) as error:
        raise DamageError(f"{type(error).__name__}: {error}") from error
    if own != _checksum({**values, CHECKSUMS: checksums}):
        raise DamageError(f"its {CHECKSUMS} is that of other values")
    return values, checksums


def check_files(folder: Path, names: Iterable[str], checksums: Mapping[str, str]) -> None:
    """Compare files of a folder with the checksums that its description holds."""
    for name in names:
        if not (folder / name).is_file() or file_checksum(folder / name) != checksums.get(name):
            raise DamageError(f"{name} is missing, or not as it was written")


def is_zip(path: Path) -> bool:
    """Tell whether a file begins like a zip archive; PyTorch distinguishes its two file formats by this."""
    with path.open("rb") as file:
        return file.read(len(ZIP_MAGIC)) == ZIP_MAGIC


def check_zip(path: Path) -> None:
    """Compare a zip archive of PyTorch or NumPy, which don't compress here, with the checksums (CRC-32) in it.

    PyTorch doesn't compare them when it loads an archive. An archive that was written without checksums passes.
    """
    try:
        with ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.file_size]
            packed = [member.filename for member in members if member.compress_type != ZIP_STORED]
            has_checksums = any(member.CRC for member in members)
            damaged = archive.testzip() if has_checksums and not packed else None
    except PermissionError:
        raise
    except Exception as error:  # zipfile doesn't document which exceptions a damaged archive raises
        raise DamageError(f"{type(error).__name__}: {error}") from error
    if packed or damaged:
        raise DamageError(f"{packed[0]} is compressed" if packed else f"{damaged} doesn't have its checksum")
