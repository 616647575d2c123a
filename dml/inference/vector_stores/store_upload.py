"""Upload of images to a vector database: only what isn't there yet, and never vectors of two models together."""

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.data.image_files.contents import UNREADABLE, read_content
from dml.inference.embedding_files import check_names
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.image_inputs import Source, check_readable, list_source
from dml.inference.index_folder import IndexItems
from dml.inference.vector_stores.stores import (
    CollectionFacts,
    Points,
    StoreAddress,
    StoreError,
    VectorStore,
    check_name,
)
from dml.runtime.console import progress_bar
from dml.runtime.errors import InputError
from dml.runtime.paths import absolute_path
from dml.runtime.text import printable

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "dml:images")

Batch = tuple[list[int], NDArray[np.float32]]
"""The positions of B images among those that are embedded, and their vectors (B, D)."""


@dataclass(frozen=True)
class StoredImages:
    """Images as a database stores them.

    Args:
        paths: paths of the files.
        names: paths that are stored.
        labels: names of the classes; empty strings where none is known.
    """

    paths: Sequence[str]
    names: Sequence[str]
    labels: Sequence[str]

    def __len__(self) -> int:
        return len(self.paths)

    def id(self, row: int) -> str:
        """Return the id of an image, a UUID that depends on its stored path alone."""
        return hash_to_uuid(self.names[row])

    def content(self, row: int) -> str:
        """Return a hash of an image's file, or of its member of an archive, and of its label.

        Raises:
            one of `dml.data.image_files.contents.UNREADABLE`: if the file can't be read.
        """
        return sha256(f"{sha256(read_content(self.paths[row])).hexdigest()} {self.labels[row]}".encode()).hexdigest()

    def points(self, rows: Sequence[int], vectors: NDArray[np.float32]) -> Points:
        """Return the images at some rows with their vectors (n, D), without those that could not be read."""
        is_read = ~np.isnan(vectors[:, 0])
        read_rows = [row for row, is_kept in zip(rows, is_read.tolist(), strict=True) if is_kept]
        return Points(
            ids=[self.id(row) for row in read_rows],
            vectors=vectors[is_read],
            paths=[self.names[row] for row in read_rows],
            labels=[self.labels[row] for row in read_rows],
            contents=[self.content(row) for row in read_rows],
        )


def hash_to_uuid(path: str) -> str:
    """Return the UUID, version 5, of a path, in the namespace of dml.

    >>> hash_to_uuid("photos/1.jpg") == hash_to_uuid("photos/1.jpg")
    True
    """
    return str(uuid.uuid5(NAMESPACE, path))


def relative_names(paths: Sequence[str], root: str | Path | None) -> list[str]:
    """Return the paths to store: as they are, or relative to a folder, with forward slashes.

    Raises:
        InputError: if an image isn't in the folder.
    """
    if root is None:
        return [*paths]
    folder = os.path.abspath(os.path.expanduser(root))
    names = []
    for path in paths:
        name = os.path.relpath(absolute_path(path), folder)
        if name == os.pardir or name.startswith(os.pardir + os.sep):
            raise InputError(f"--root {printable(root)}: {printable(path)} isn't in this folder")
        names.append(Path(name).as_posix())
    return names


IDS_AT_A_TIME = 1000
"""Number of ids that the database is asked for at a time."""


@dataclass(frozen=True)
class UploadReport:
    """What an upload did.

    Args:
        collection: collection that holds the images.
        uploaded: number of images that were embedded and uploaded.
        unchanged: number of images that were there already.
        total: number of images in the collection.
        replaced: collection of another model that the name stood for before, which is kept; None for none. In LanceDB
            it has the same name, and is kept as an older version.
    """

    collection: str
    uploaded: int
    unchanged: int
    total: int
    replaced: str | None


def upload_images(
    model: ImageEmbedder,
    address: StoreAddress,
    name: str,
    source: Source,
    *,
    root: str | Path | None = None,
    replace: bool = False,
    **options: Any,
) -> UploadReport:
    """Embed and upload the images of a source that aren't in a collection yet.

    The id of an image is a hash of its path, and its content a hash of its file and label. So an upload can be
    repeated: images with the same content are neither embedded nor uploaded again.

    Args:
        model: model that embeds the images.
        address: address of the vector database.
        name: name of the collection, by which it is searched.
        source: images, as `Index.build` takes them.
        root: folder that the stored paths are relative to; None stores them as they are given.
        replace: whether a collection of another model is replaced.
        **options: further arguments of `ImageEmbedder.embed_in_batches`.

    Raises:
        StoreError: if the database can't be reached, or refuses something.
        InputError: if the name can't be used, the model's vectors can't be compared by cosine similarity, the
            collection holds vectors of another model, or not one image can be used.
    """
    check_name(name)
    if model.ball:
        raise InputError(f"--to {address}: it compares by cosine similarity, the model by {model.geometry}; use a file")
    paths, labels = list_source(source)
    names = relative_names(paths, root)
    check_names(names, labels)
    IndexItems.number(names, labels)  # refuses a path that is given twice
    images = StoredImages(paths, names, labels)
    with closing(address.open()) as store:
        live = store.call(store.find, name)
        collection = _choose_collection(store, model, name, live, replace=replace)
        rows = _find_missing(store, collection, images)
        uploaded = _upload(store, collection, model, images, rows, options)
        check_readable(len(images) - len(rows) + uploaded, len(images))
        is_new = collection != live
        if is_new:
            store.call(store.switch, name, collection)
        elif uploaded:
            store.call(store.finish, collection)
        collection = store.call(store.find, name) or collection
        return UploadReport(
            collection=collection,
            uploaded=uploaded,
            unchanged=len(images) - len(rows),
            total=store.call(store.count, collection),
            replaced=live if is_new else None,
        )


def _choose_collection(store: VectorStore, model: ImageEmbedder, name: str, live: str | None, *, replace: bool) -> str:
    """Return the collection to upload to, which is made if it doesn't exist; ``live`` is the one of the name."""
    facts = CollectionFacts(model.fingerprint, model.geometry, model.dimension)
    if live is not None:
        live_facts = store.call(store.read_facts, live)
        if live_facts is None:
            raise InputError(f"{store.address}: dml didn't make the collection {live}; give another name")
        if live_facts == facts:
            return live
        if not replace:
            raise InputError(
                f"{store.address}: the collection {name} is of the model {printable(live_facts.fingerprint)}, "
                f"not of {facts.fingerprint}; give another name, or --replace, which embeds into a new collection"
            )
    collection = f"{name}__{facts.fingerprint}"
    if collection not in store.call(store.list_collections):
        store.call(store.create, collection, facts)
    elif store.call(store.read_facts, collection) != facts:
        raise InputError(f"{store.address}: dml didn't make the collection {collection}; give another name")
    return collection


def _find_missing(store: VectorStore, collection: str, images: StoredImages) -> list[int]:
    """Return the rows of the images that the collection doesn't hold as they are now."""
    missing: list[int] = []
    for first in range(0, len(images), IDS_AT_A_TIME):
        rows = range(first, min(first + IDS_AT_A_TIME, len(images)))
        ids = {row: images.id(row) for row in rows}
        stored = store.call(store.read_contents, collection, [*ids.values()])
        missing += [row for row, identifier in ids.items() if not _is_unchanged(images, row, stored.get(identifier))]
    return missing


def _is_unchanged(images: StoredImages, row: int, stored: str | None) -> bool:
    if stored is None:
        return False
    try:
        return images.content(row) == stored
    except UNREADABLE:  # the embedding tells what is wrong with the file, or leaves it out
        return False


def _upload(
    store: VectorStore,
    collection: str,
    model: ImageEmbedder,
    images: StoredImages,
    rows: list[int],
    options: dict[str, Any],
) -> int:
    """Embed and upload the images at some rows -> the number of uploaded ones; unreadable ones may be left out."""
    done = 0
    if not rows:
        return done
    # a forked process could wait for ever for a lock that a thread of the database's library held
    batches = model.embed_in_batches([images.paths[row] for row in rows], start_method="spawn", **options)
    with progress_bar("uploaded", len(rows)) as advance:
        try:
            for positions, vectors in _join_batches(batches, store.batch_size):
                points = images.points([rows[position] for position in positions], vectors)
                if points.ids:
                    store.call(store.upsert, collection, points)
                done += len(points.ids)
                advance(len(positions))
        except StoreError as error:
            raise StoreError(
                f"{error}; {done:,} of {len(rows):,} images are uploaded, the same command goes on with the rest"
            ) from error
    return done


def _join_batches(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Join batches of positions and vectors, until they have ``size`` images or a few more."""
    positions: list[int] = []
    vectors: list[NDArray[np.float32]] = []
    for batch_positions, batch_vectors in batches:
        positions += batch_positions
        vectors.append(batch_vectors)
        if len(positions) >= size:
            yield positions, np.concatenate(vectors)
            positions, vectors = [], []
    if positions:
        yield positions, np.concatenate(vectors)
