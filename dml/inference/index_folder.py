"""The folder of a saved index, and the lock of the process that writes it.

- ``index.json``: what the index is, and the names of the other files. It is replaced last.
- ``vectors-VERSION.faiss``, ``items-VERSION.parquet`` and ``model-VERSION``: the vectors, the images and the model.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.filesystem.checksums import CHECKSUMS, DamageError, file_checksum
from dml.ops.filesystem.locks import holding
from dml.ops.filesystem.paths import expand_home
from dml.ops.run_folders.run_files import read_values

FORMAT = 2
"""The version of the files, which changes when older versions of dml can't read them."""

DESCRIPTION, LOCK = "index.json", ".lock"

VERSIONED = re.compile(r"\.?(vectors|items|model)-[0-9a-f]{8}(\.|$)|\.index\.json\.")
"""The beginning of the name of a file of one version, complete or partial, and of a partial ``index.json``."""


def is_index(folder: str | Path) -> bool:
    """Return whether a folder holds an index."""
    return (expand_home(folder) / DESCRIPTION).is_file()


@contextmanager
def hold_folder(folder: str | Path, *, wait: bool = False) -> Iterator[Path]:
    """Keep other processes from writing an index's folder in the ``with`` statement -> its absolute path.

    Args:
        folder: folder of an index, or a new or empty one, which is made. One that is made and stays empty is removed.
        wait: whether to wait until another process has written it, instead of raising an error.

    Raises:
        InputError: if the folder holds something else, or another process is writing it and ``wait`` is false.
    """
    path = expand_home(folder).absolute()
    is_new = not path.exists()
    if not is_new and not is_index(path) and not _is_unfinished(path):
        raise InputError(f"{printable(folder)}: holds something else; give a new folder, or one of an index")
    with ExitStack() as stack:
        if is_new:
            path.mkdir(parents=True, exist_ok=True)
            stack.callback(_remove_if_empty, path)
        try:
            stack.enter_context(holding(path / LOCK, wait=wait))
        except BlockingIOError as error:
            raise InputError(f"{printable(folder)}: {error.strerror} is at work on it; wait for it") from error
        stack.callback((path / LOCK).unlink, missing_ok=True)
        yield path


def _is_unfinished(path: Path) -> bool:
    """Return whether a folder without ``index.json`` is empty, or holds only what a killed process left."""
    return path.is_dir() and all(entry.name == LOCK or VERSIONED.match(entry.name) for entry in path.iterdir())


def _remove_if_empty(path: Path) -> None:
    with suppress(OSError):  # it isn't empty
        path.rmdir()


def read_description(path: Path) -> dict[str, Any]:
    """Read and check index.json of an index's folder."""
    file = path / DESCRIPTION
    if not file.is_file():
        raise InputError(f"{printable(path)}: no index there; dml index, or dml.Index.build and save, makes one")
    try:
        description, checksums = read_values(file, may_nest=True)
        version, files = description["format"], dict(description["files"])
        names = [files[kind] for kind in ("vectors", "items", "model")]
        keys = [description[key] for key in ("fingerprint", "factory", "parameters")]
        next_id = description.setdefault("next_id", 0)  # older versions wrote none
        older = {files[kind]: checksum for kind, checksum in description.get("sha256", {}).items()}
        description[CHECKSUMS] = checksums or older
    except (DamageError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{printable(file)}: damaged ({printable(error)}); build the index again") from error
    if version not in (1, FORMAT):
        raise InputError(f"{printable(path)}: of format {version}, this version of dml reads {FORMAT}; update dml")
    are_kinds_right = all(isinstance(key, str) for key in (*keys, *names)) and isinstance(next_id, int)
    if not are_kinds_right or any(os.path.basename(name) != name for name in names):
        raise InputError(f"{printable(file)}: damaged (values that dml doesn't write); build the index again")
    return description


def check_files(path: Path, description: dict[str, Any]) -> None:
    """Make sure that the vectors and the items are those that ``index.json`` describes.

    Raises:
        InputError: if a file is missing, or isn't as it was written.
    """
    for kind in ("vectors", "items"):
        file = path / description["files"][kind]
        checksum = description[CHECKSUMS].get(file.name)
        if not file.is_file() or checksum not in (None, file_checksum(file)):
            raise InputError(f"{printable(file)}: missing, or not as it was written; build the index again")


def remove_unused_versions(path: Path) -> None:
    """Delete the files that ``index.json`` doesn't name: of older versions, and of a version that wasn't finished.

    A damaged ``index.json`` leaves all of them. Only a process that holds the folder may do so.
    """
    used: set[str] = set()
    if is_index(path):
        try:
            used = {*read_description(path)["files"].values()}
        except InputError:
            return
    for entry in path.iterdir():
        if VERSIONED.match(entry.name) and entry.name not in used:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
