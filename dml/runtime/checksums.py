"""Checksums inside of files, which show whether a file has been damaged since it was written."""

import json
from collections.abc import Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

CHECKSUMS = "checksums"
"""The key under which `seal_values` puts the checksums."""

HEAD = "# sha256 of the text below: "
ZIP_MAGIC = b"PK\x03\x04"


class DamageError(Exception):
    """An error for a file that isn't as it was written; the message describes the damage, but doesn't name the file."""


def file_checksum(path: Path) -> str:
    """Compute the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def rows_checksum(rows: Mapping[int, Mapping[str, Any]]) -> str:
    """Compute the SHA-256 of rows of values by step, in hexadecimal; the order of the columns doesn't matter."""
    texts = {step: {name: str(value) for name, value in row.items()} for step, row in rows.items()}
    return sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()


def seal_text(text: str) -> bytes:
    """Encode a text, such as YAML, in UTF-8, below a comment line that holds its SHA-256.

    The comment is the first line, because a file that was cut short keeps its first line.
    """
    content = text.encode()
    return f"{HEAD}{sha256(content).hexdigest()}\n".encode() + content


def unseal_text(sealed: bytes) -> str:
    """Return the text that `seal_text` encoded; a text without a checksum, from an older version, is returned as it is.

    Raises:
        DamageError: if the text doesn't have its checksum, or isn't UTF-8.
    """
    first_line, _, content = sealed.partition(b"\n")
    # No text that is sealed begins with a comment. A first line that looks like one is the checksum, perhaps damaged.
    if not (first_line.startswith(b"#") or b"sha256" in first_line):
        content = sealed
    elif first_line.decode("ascii", "replace") != HEAD + sha256(content).hexdigest():
        raise DamageError("its first line isn't the checksum of the lines below; delete that line if you edited them")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DamageError(str(error)) from error


def seal_values(values: Mapping[str, Any], name: str, file_checksums: Mapping[str, str]) -> dict[str, Any]:
    """Add the key `CHECKSUMS` to the plain values of the file ``name``: the SHA-256 of the values and of other files.

    The checksums are one string, such as "metrics.csv:2c26b4... metrics.json:fcde2b...", because programs that read the
    values expect numbers and strings.
    """
    checksum = _checksum({**values, CHECKSUMS: dict(file_checksums)})
    return {
        **values,
        CHECKSUMS: " ".join(f"{file}:{value}" for file, value in {**file_checksums, name: checksum}.items()),
    }


def unseal_values(sealed: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values and the checksums of other files that `seal_values` combined.

    Values from older versions have no checksums and are returned as they are.

    Raises:
        DamageError: if the values don't have their checksum.
    """
    values = dict(sealed)
    text = values.pop(CHECKSUMS, "")
    if CHECKSUMS not in sealed:
        if lost := [key for key, value in values.items() if isinstance(value, str) and f"{name}:" in value]:
            raise DamageError(f"its {CHECKSUMS} are named {lost[0]!r}")
        return values, {}
    if not isinstance(text, str):
        raise DamageError(f"its {CHECKSUMS} are no checksums by name")
    checksums = dict(part.partition(":")[::2] for part in text.split())
    file_checksums = {key: value for key, value in checksums.items() if key != name}
    if checksums.get(name) != _checksum({**values, CHECKSUMS: file_checksums}):
        raise DamageError(f"its {CHECKSUMS} say that it was written with other values")
    return values, file_checksums


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def is_zip(path: Path) -> bool:
    """Tell whether a file begins like a zip archive; PyTorch distinguishes its two file formats by this."""
    with path.open("rb") as file:
        return file.read(len(ZIP_MAGIC)) == ZIP_MAGIC


def check_zip(path: Path) -> None:
    """Compare the content of a zip archive that PyTorch or NumPy wrote with the checksums (CRC-32) in the archive.

    PyTorch doesn't compare them when it loads an archive. An archive that was written without checksums passes.

    Raises:
        DamageError: if the archive is damaged, or is compressed, since PyTorch and NumPy don't compress here.
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
    if packed:
        raise DamageError(f"{packed[0]} is compressed")
    if damaged:
        raise DamageError(f"the content of {damaged} doesn't have its checksum")
