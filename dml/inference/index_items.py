"""The images in an index, and the functions that list and embed them, and put their vectors into FAISS's index."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from dml.data.cells import name_classes, number_classes, warn_of_names
from dml.data.contents import identify_images
from dml.data.images import UnreadableImageError
from dml.inference.embedder import REMEDY, Embedder
from dml.inference.image_inputs import Source, check_readable, list_source, to_vectors
from dml.retrieval.rows import unit_rows
from dml.retrieval.vector_index import VectorIndex
from dml.runtime.errors import InputError
from dml.runtime.files import absolute_path
from dml.runtime.text import printable

UNIT_TOLERANCE = 1e-5  # difference of a vector's length from 1 that comes from rounding
MOST_TRAINING_VECTORS = 100_000  # that an approximate index is trained with


@dataclass(frozen=True, eq=False)
class IndexItems:
    """The images in an index, in ascending order of their ids."""

    ids: NDArray[np.int64]  # (N,) int64, ascending
    paths: NDArray[np.object_]  # (N,) strings, absolute, each image once
    labels: NDArray[np.object_]  # (N,) strings, names of the classes; empty strings where none is known

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

    @cached_property
    def identities(self) -> list[str]:
        """What tells whether the images are those of other paths, see `identify_images`."""
        return identify_images(self.paths.tolist())

    def are_among(self, identities: Iterable[str]) -> NDArray[np.bool_]:
        """Return for each item whether it is one of some images, which `identify_images` names."""
        known = set(identities)
        return np.array([identity in known for identity in self.identities], dtype=bool)

    def take(self, keep: NDArray[np.bool_]) -> "IndexItems":
        """Return the items at which a mask (N,) is true."""
        return IndexItems(self.ids[keep], self.paths[keep], self.labels[keep])

    def take_labels(self, earlier: "IndexItems") -> "IndexItems":
        """Return these items, of which those without a label have that of the same image in earlier items."""
        labels = dict(zip(earlier.identities, earlier.labels.tolist(), strict=True))
        labeled = zip(self.identities, self.labels.tolist(), strict=True)
        return IndexItems(self.ids, self.paths, _as_objects(label or labels.get(image, "") for image, label in labeled))

    def join(self, later: "IndexItems") -> "IndexItems":
        """Return these items followed by items with larger ids."""
        ids, paths = np.concatenate([self.ids, later.ids]), np.concatenate([self.paths, later.paths])
        return IndexItems(ids, paths, np.concatenate([self.labels, later.labels]))

    def write(self, path: Path) -> None:
        """Write the items to a .parquet file."""
        table = pa.table({"id": self.ids, "path": self.paths, "label": self.labels})
        pq.write_table(table, path, write_page_checksum=True)

    @classmethod
    def read(cls, path: Path) -> "IndexItems":
        """Read the items from a .parquet file."""
        with pq.ParquetFile(path, page_checksum_verification=True) as file:  # pq.read_table would import pandas
            columns = file.read(columns=["id", "path", "label"]).to_pydict()
        ids = np.array(columns["id"], dtype=np.int64)
        return cls(ids, _as_objects(columns["path"]), _as_objects(columns["label"]))


def _as_objects(texts: Iterable[str]) -> NDArray[np.object_]:
    """Return an array of texts, each of which takes the memory of its length; in one of strings all take the most."""
    array: NDArray[np.object_] = np.array([*texts], dtype=object)
    return array


@lru_cache(maxsize=1)  # each answer of a server asks
def are_all_seen(items: IndexItems, classes: frozenset[str]) -> bool:
    """Return whether there are items, all of which are of some classes, see `IndexItems.are_seen`."""
    return bool(classes) and len(items) > 0 and all(items.are_seen(classes))


def make_searchable(model: Embedder, factory: str, parameters: str, count: int) -> VectorIndex:
    """Make an empty index for ``count`` vectors of a model; raise an `InputError` if this kind can't hold them."""
    VectorIndex.check(model.dimension, factory, parameters, min(count, MOST_TRAINING_VECTORS))
    searchable = VectorIndex(model.dimension, factory)
    searchable.set_parameters(parameters)
    return searchable


def fill(searchable: VectorIndex, searched: NDArray[np.float32], ids: NDArray[np.int64]) -> None:
    """Train an empty index if it needs that, and add vectors (N, D) with ids (N,)."""
    if searchable.needs_training:
        chosen = np.random.default_rng(0).permutation(len(searched))[:MOST_TRAINING_VECTORS]
        searchable.train(searched[np.sort(chosen)])
    searchable.add(searched, ids)
    searchable.search(searched[:1], k=1)  # codes of more than 8 bits weren't tried before


def list_items(source: Source, first_id: int = 0, labels: Iterable[Any] | None = None) -> IndexItems:
    """List images by their absolute paths, which are the same in every working folder."""
    paths, names = list_source(source)
    if labels is not None:
        names = name_classes(labels.tolist() if isinstance(labels, Tensor) else labels)
        numbers, classes = number_classes(names)
        warn_of_names(numbers[:, None], [classes], "labels")
    if (shape := getattr(labels, "shape", (len(names),))) != (len(paths),):
        raise InputError(f"labels: {' x '.join(map(str, shape))} for {len(paths)} images")
    return IndexItems.number(map(absolute_path, paths), names, first_id)


def check_vectors(vectors: Any, model: Embedder, count: int | None = None) -> NDArray[np.float32]:
    """Scale vectors (N, D) to unit length, those of `Embedder.embed` excepted."""
    shape, expected = np.shape(vectors), (len(vectors) if count is None else count, model.dimension)
    if shape != expected or vectors.dtype.kind != "f":
        raise InputError(f"vectors of shape {shape}: expected floats of shape {expected}, the size of the model's")
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise InputError("vectors: one has a number that is NaN or infinite, or is zero and has no direction")
    is_unit = np.abs(np.linalg.norm(vectors, axis=1, keepdims=True) - 1) < UNIT_TOLERANCE
    return np.where(is_unit, vectors, unit_rows(vectors, "vectors").numpy())


def embed_items(model: Embedder, items: IndexItems, options: dict[str, Any]) -> tuple[IndexItems, NDArray[np.float32]]:
    """Embed images -> the readable ones, and their vectors."""
    if options.get("views") not in (None, model.settings.views):
        raise InputError(
            f"views={options['views']}: queries have {model.settings.views}, as in the test of the run; leave it out"
        )
    return leave_out(items, model.embed(items.paths.tolist(), **options))


def leave_out(items: IndexItems, vectors: NDArray[np.float32]) -> tuple[IndexItems, NDArray[np.float32]]:
    """Leave out the images whose vectors (N, D) are NaN, as they couldn't be read."""
    is_read = ~np.isnan(vectors[:, 0])
    check_readable(int(is_read.sum()), len(items))
    return items.take(is_read), vectors[is_read]


def embed_queries(model: Embedder, images: Any) -> NDArray[np.float32]:
    """Check vectors (D,) or (Q, D) of a model, or embed images by it. -> (Q, D)"""
    if isinstance(images, np.ndarray | Tensor) and re.search(r"\bint|uint[136]", str(images.dtype)):
        images = torch.as_tensor(images).float()  # only those of type uint8 are pixels
    queries = to_vectors(images)
    if isinstance(queries, np.ndarray) and queries.dtype.kind == "f":
        return check_vectors(np.atleast_2d(queries), model)
    try:
        return model.embed(queries)
    except UnreadableImageError as error:  # its line names an option of embed
        raise UnreadableImageError(str(error).removesuffix(REMEDY)) from error
