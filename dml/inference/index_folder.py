"""The folder of a saved index, with the lock of the process that writes it.

- ``index.json``: what the index is, and the names of the other files. It is replaced last.
- ``README.md``: the card, which says what the index is to a reader.
- ``vectors-VERSION.faiss``, ``items-VERSION.parquet`` and ``model-VERSION``: the vectors, the images and the model.
- ``adapter-VERSION.npz``, while the index is upgraded: the map from the model's vectors to those of the index.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dml.inference.certificates import describe
from dml.inference.index_items import IndexItems
from dml.retrieval.adapters import Adapter
from dml.retrieval.vector_index import VectorIndex
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home, holding, replacing
from dml.runtime.reading import CHECKSUMS, DamageError, check_files, file_checksum, read_manifest, write_manifest
from dml.runtime.text import printable

Opened = TypeVar("Opened")

FORMAT = 5  # the version of the files; an index of another one is built again

DESCRIPTION, CARD, LOCK = "index.json", "README.md", ".lock"
ENDINGS = {"vectors": ".faiss", "items": ".parquet", "adapter": ".npz", "model": ""}

VERSIONED = re.compile(r"\.?(vectors|items|model|adapter)-[0-9a-f]{8}(\.|$)|\.index\.json\.|\.README\.md\.")
"""The beginning of the name of a file of one version, complete or partial, and of a partial file without a version."""

CARD_TEXT = """# An index of {images:,} images

`dml search FOLDER photo.jpg`, `dml serve FOLDER` and `dml.Index.load("FOLDER")` search this folder.

- Vectors: {dimension} dimensions, compared by cosine{model}
- Kind: `{factory}` {parameters}
- Checked: {certificate}
"""


def is_index(folder: str | Path) -> bool:
    """Return whether a folder holds an index."""
    return (expand_home(folder) / DESCRIPTION).is_file()


@contextmanager
def hold_folder(folder: str | Path, *, wait: bool = False) -> Iterator[Path]:
    """Keep other processes from writing an index's folder in the ``with`` statement, or wait for them -> its path."""
    path = expand_home(folder).absolute()
    # a killed process may have left files of a folder without ``index.json``
    is_free = path.is_dir() and all(entry.name == LOCK or VERSIONED.match(entry.name) for entry in path.iterdir())
    if path.exists() and not (is_free or is_index(path)):
        raise InputError(f"{printable(folder)}: holds something else; give a new folder, or one of an index")
    path.mkdir(parents=True, exist_ok=True)
    with holding(path / LOCK, name=printable(folder), wait=wait):
        try:
            yield path
        finally:
            (path / LOCK).unlink(missing_ok=True)


def write_version(
    path: Path, facts: Mapping[str, Any], writers: Mapping[str, Callable[[Path], object]], state: Sequence[Any]
) -> None:
    """Write a new version into a folder that the caller holds: facts of ``index.json``, and files by their kinds."""
    version = secrets.token_hex(4)
    names = {kind: f"{kind}-{version}{ENDINGS[kind]}" for kind in writers}
    checksums = {}
    try:
        for kind, write in writers.items():
            if kind == "model":
                write(path / names[kind])
                continue
            with replacing(path / names[kind], on_disk=True) as partial:
                write(partial)
            checksums[names[kind]] = file_checksum(path / names[kind])
        write_description(path, {"format": FORMAT, **facts, "files": {"model": "", **names}}, checksums, state)
    finally:
        remove_unused_versions(path)  # those of this version, if a disk was full


def write_description(
    path: Path, description: Mapping[str, Any], checksums: Mapping[str, str], state: Sequence[Any]
) -> None:
    """Write ``index.json``, and the card of an index in a state, which `describe` compares with the certificate's."""
    write_manifest(path / DESCRIPTION, description, checksums)
    certificate, space = description.get("certificate"), description["space"]
    checked = describe(certificate, state) if certificate else "never; `dml index FOLDER --check 1000` does it"
    model = space and f", of the model `{space}`"
    with replacing(path / CARD) as partial:
        partial.write_text(CARD_TEXT.format_map({**description, "certificate": checked, "model": model}), "utf-8")


def write_certificate(path: Path, parameters: str, certificate: Mapping[str, Any]) -> None:
    """Replace the search parameters and the certificate in an index's folder, which the caller holds."""
    description = read_description(path) | {"parameters": parameters, "certificate": certificate}
    write_description(path, description, description.pop(CHECKSUMS), certificate["state"])


def read_description(path: Path) -> dict[str, Any]:
    """Read and check index.json of an index's folder."""
    file = path / DESCRIPTION
    if not file.is_file():
        raise InputError(f"{printable(path)}: no index there; dml index, or dml.Index.build and save, makes one")
    try:
        description, checksums = read_manifest(file, FORMAT)
        names = [*description["files"].values()]
    except (AttributeError, KeyError, ValueError) as error:
        raise InputError(f"{printable(file)}: damaged ({printable(error)}); build the index again") from error
    if any(os.path.basename(name) != name for name in names):  # a stranger's may lead anywhere
        raise InputError(f"{printable(file)}: damaged (names of files elsewhere); build the index again")
    return {"certificate": None, **description, CHECKSUMS: checksums}


def open_newest(path: Path, open_version: Callable[[dict[str, Any]], Opened]) -> Opened:
    """Open the version that ``index.json`` describes, or a newer one, if another process saves that meanwhile."""
    description = read_description(path)
    while True:
        try:
            return open_version(description)
        except (InputError, OSError):
            newer = read_description(path)
            if newer["files"] == description["files"]:
                raise
            description = newer  # the other process deleted the old files


def read_content(path: Path, description: Mapping[str, Any]) -> tuple[IndexItems, VectorIndex, Adapter | None]:
    """Read the items, the vectors and perhaps the adapter, after a comparison with their checksums."""
    files = description["files"]
    try:
        check_files(path, [name for kind, name in files.items() if kind != "model"], description[CHECKSUMS])
    except DamageError as error:
        raise InputError(f"{printable(path)}: damaged ({printable(error)}); build the index again") from error
    vectors = VectorIndex.read(path / files["vectors"], description["factory"])
    vectors.set_parameters(description["parameters"])
    adapter = Adapter.read(path / files["adapter"]) if "adapter" in files else None
    return IndexItems.read(path / files["items"]), vectors, adapter


def remove_unused_versions(path: Path) -> None:
    """Delete the files that ``index.json`` doesn't name, while the folder is held; a damaged one leaves all of them."""
    used: set[str] = set()
    if is_index(path):
        try:
            used = {*read_description(path)["files"].values()}
        except InputError:
            return
    for entry in path.iterdir():
        if VERSIONED.match(entry.name) and entry.name not in used:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
