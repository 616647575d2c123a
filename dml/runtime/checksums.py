"""Checksums of the files that are read back as numbers, which show whether one has changed since it was written."""

import json
from collections.abc import Iterable, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

from dml.runtime.files import replacing
from dml.runtime.reading import parse_json, read_bounded

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
