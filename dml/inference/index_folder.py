"""The images in an index, and the folder of a saved index with the lock of the process that writes it.

- ``index.json``: what the index is, and the names of the other files. It is replaced last.
- ``README.md``: the card, which says what the index is to a reader.
- ``vectors-VERSION.faiss``, ``items-VERSION.parquet`` and ``model-VERSION``: the vectors, the images and the model.
- ``adapter-VERSION.npz``, while the index is upgraded: the map from the model's vectors to those of the index.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dml.data.image_files.parts import identify_images
from dml.inference.certificates import describe
from dml.runtime.checksums import CHECKSUMS, DamageError, check_files, read_manifest, write_manifest
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.locks import holding
from dml.runtime.paths import expand_home
from dml.runtime.text import printable


@dataclass(frozen=True, eq=False)
class IndexItems:
    """The images in an index, in ascending order of their ids.

    Args:
        ids: (N,) int64, ascending.
        paths: (N,) strings, absolute, each image once.
        labels: (N,) strings, names of the classes; empty strings where none is known.
    """

    ids: NDArray[np.int64]
    paths: NDArray[np.object_]
    labels: NDArray[np.object_]

    @classmethod
    def number(cls, paths: Iterable[str], labels: Iterable[str], first_id: int = 0) -> "IndexItems":
        """Give ids to images, from ``first_id`` on."""
        listed = [*paths]
        identities = identify_images(listed)
        twice, count = max(Counter(identities).items(), key=lambda item: item[1], default=("", 0))
        if count > 1:
            spellings = [path for path, identity in zip(listed, identities, strict=True) if identity == twice]
            names = " and ".join(map(printable, [*dict.fromkeys(spellings)][:2]))
            raise InputError(f"{names}: given {count} times; an index holds it once")
        ids = np.arange(first_id, first_id + len(listed))
        return cls(ids, _as_objects(listed), _as_objects(labels))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def next_id(self) -> int:
        """The smallest id that is larger than all ids; 0 without items."""
        return int(self.ids[-1]) + 1 if len(self) else 0

    def are_seen(self, classes: Set[str]) -> Iterator[bool]:
        """Yield for each item whether its label, or else the path of its folder, ends with the name of one of some."""
        ends = tuple(f"/{name}" for name in classes)
        is_seen, resolve = cache(lambda place: place.endswith(ends)), cache(os.path.realpath)
        for path, label in zip(self.paths.tolist(), self.labels.tolist(), strict=True):
            folder = resolve(os.path.dirname(path))
            yield is_seen(folder if not label or folder.endswith(f"/{label}") else f"/{label}")

    @cached_property
    def same_share(self) -> float | None:
        """The share of pairs of one class among all pairs of images with a label; None if it is 0 or 1."""
        counts = np.array([count for label, count in Counter(self.labels.tolist()).items() if label])
        pairs, same = counts.sum() * (counts.sum() - 1), (counts * (counts - 1)).sum()
        return float(same / pairs) if 0 < same < pairs else None

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of ids, of any shape; -1 for negative ids, which stand for no item."""
        positions = np.where(ids < 0, -1, np.searchsorted(self.ids, ids))
        is_unknown = (ids >= 0) & (self.ids.take(positions, mode="clip") != ids)
        if is_unknown.any():
            raise InputError(f"vectors: one has the id {ids[is_unknown][0]}, which no image has; build the index again")
        return positions

    def are_among(self, identities: Iterable[str]) -> NDArray[np.bool_]:
        """Return for each item whether it is one of some images, which `identify_images` names."""
        known = set(identities)
        return np.array([identity in known for identity in self.identities], dtype=bool)

    @cached_property
    def identities(self) -> list[str]:
        """What tells whether the images are those of other paths, see `identify_images`."""
        return identify_images(self.paths.tolist())

    def take(self, keep: NDArray[np.bool_]) -> "IndexItems":
        """Return the items at which a mask (N,) is true."""
        return replace(self, ids=self.ids[keep], paths=self.paths[keep], labels=self.labels[keep])

    def take_labels(self, earlier: "IndexItems") -> "IndexItems":
        """Return these items, of which those without a label have that of the same image in earlier items."""
        labels = dict(zip(earlier.identities, earlier.labels.tolist(), strict=True))
        labeled = zip(self.identities, self.labels.tolist(), strict=True)
        joined = _as_objects(label or labels.get(identity, "") for identity, label in labeled)
        return replace(self, labels=joined)

    def join(self, later: "IndexItems") -> "IndexItems":
        """Return these items followed by items with larger ids."""
        columns = ("ids", "paths", "labels")
        joined: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(later, name)]) for name in columns}
        return replace(self, **joined)

    def write(self, path: Path) -> None:
        """Write the items to a .parquet file."""
        table = pa.table({"id": self.ids, "path": self.paths, "label": self.labels})
        pq.write_table(table, path, write_page_checksum=True)

    @classmethod
    def read(cls, path: Path) -> "IndexItems":
        """Read the items from a .parquet file; pyarrow raises an exception if it is damaged."""
        with pq.ParquetFile(path, page_checksum_verification=True) as file:  # pq.read_table would import pandas
            columns = file.read(columns=["id", "path", "label"]).to_pydict()
        ids = np.array(columns["id"], dtype=np.int64)
        return cls(ids, _as_objects(columns["path"]), _as_objects(columns["label"]))


def _as_objects(texts: Iterable[str]) -> NDArray[np.object_]:
    """Return an array of texts, each of which takes the memory of its length; in one of strings all take the most."""
    array: NDArray[np.object_] = np.array([*texts], dtype=object)
    return array


FORMAT = 5
"""The version of the files; an index of another one is built again."""

DESCRIPTION, CARD, LOCK = "index.json", "README.md", ".lock"

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
        stack.enter_context(holding(path / LOCK, name=printable(folder), wait=wait))
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
        description, checksums = read_manifest(file, FORMAT)
        description[CHECKSUMS] = checksums
        files = dict(description["files"])
        names = [files[kind] for kind in ("vectors", "items", "model")]
        names.append(files.get("adapter", ""))
        keys = [description[key] for key in ("fingerprint", "factory", "parameters", "space")]
        next_id = description["next_id"]
        if certificate := description.setdefault("certificate", None):
            describe(certificate, [])  # values of other types raise an error here
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{printable(file)}: damaged ({printable(error)}); build the index again") from error
    are_kinds_right = all(isinstance(key, str) for key in (*keys, *names)) and isinstance(next_id, int)
    if not are_kinds_right or any(os.path.basename(name) != name for name in names):
        raise InputError(f"{printable(file)}: damaged (values that dml doesn't write); build the index again")
    return description


def write_certificate(path: Path, parameters: str, certificate: Mapping[str, Any]) -> None:
    """Replace the search parameters and the certificate in an index's folder, which the caller holds."""
    description = read_description(path) | {"parameters": parameters, "certificate": certificate}
    write_description(path, description, description.pop(CHECKSUMS), certificate["state"])


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


def check_content(path: Path, description: Mapping[str, Any]) -> None:
    """Make sure that the vectors, the items and the adapter are those that ``index.json`` describes."""
    names = [name for kind, name in description["files"].items() if kind != "model"]
    try:
        check_files(path, names, description[CHECKSUMS])
    except DamageError as error:
        raise InputError(f"{printable(path)}: damaged ({printable(error)}); build the index again") from error


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
