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
from dml.inference.embedding_files import WHOLE, Shard, check_names, name_images
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
from dml.runtime.paths import absolute_path, expand_home
from dml.runtime.text import printable

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "dml:images")

IDS_AT_A_TIME = 1000
"""Number of ids that the database is asked for at a time."""

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
        """Return the id of an image, a UUID of version 5 that depends on its stored path alone."""
        return str(uuid.uuid5(NAMESPACE, self.names[row]))

    def choose(self, shard: Shard) -> "StoredImages":
        """Return the images of a shard. An image's id alone decides, so that it is in the same shard of any list."""
        rows = [row for row in range(len(self)) if uuid.UUID(self.id(row)).int % shard.count == shard.number - 1]
        return StoredImages(*([column[row] for row in rows] for column in (self.paths, self.names, self.labels)))

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


@dataclass(frozen=True)
class UploadReport:
    """What an upload did.

    Args:
        collection: collection that holds the images.
        uploaded: number of images that were embedded and uploaded.
        unchanged: number of images that were there already.
        held: number of uploaded and unchanged images that the database holds by its own account; it is their sum.
        total: number of images in the collection.
        is_searchable: whether the name stands for the collection; if not, the last shard has to end after all others.
        replaced: collection of another model that the name stood for before, which is kept; None for none. In LanceDB
            it has the same name, and is kept as an older version.
    """

    collection: str
    uploaded: int
    unchanged: int
    held: int
    total: int
    is_searchable: bool
    replaced: str | None


def upload_images(
    model: ImageEmbedder,
    address: StoreAddress,
    name: str,
    source: Source | None,
    *,
    shard: Shard = WHOLE,
    root: str | Path | None = None,
    replace: bool = False,
    **options: Any,
) -> UploadReport:
    """Embed and upload the images of a source that aren't in a collection yet.

    The id of an image is a hash of its path, and its content a hash of its file and label. So an upload can be
    repeated: images with the same content are neither embedded nor uploaded again. Several processes may upload one
    shard each. The last shard lets the name stand for a new collection, if all images are there when it ends.

    Args:
        model: model that embeds the images.
        address: address of the vector database.
        name: name of the collection, by which it is searched.
        source: images, as `Index.build` takes them; None takes those that the collection holds.
        shard: share of the images to upload.
        root: folder that the stored paths are relative to, which is stored too; None stores absolute paths.
        replace: whether a collection of another model is replaced.
        **options: further arguments of `ImageEmbedder.embed_in_batches`.

    Raises:
        StoreError: if the database can't be reached, refuses something, or holds fewer images than were uploaded.
        InputError: if the name can't be used, the collection holds vectors of another model, not one image can be
            used, or without a source the images of the collection change meanwhile.
    """
    check_name(name)
    listed = _list_stored(address, name, root) if source is None else _list_images(source, root)
    images = listed.choose(shard)
    IndexItems.number(images.paths, images.labels)  # refuses an image that is given twice
    with closing(address.open()) as store:
        live = store.call(store.find, name)
        place = "" if root is None else absolute_path(expand_home(root))
        facts = CollectionFacts(model.fingerprint, model.dimension, root=place)
        collection = _open_collection(store, facts, name, live, replace=replace)
        missing = _find_missing(store, collection, images)
        left_out = _upload(store, collection, model, images, missing, options)
        uploaded = len(missing) - len(left_out)
        check_readable(len(images) - len(left_out), len(images))
        try:
            held, total = _count_held(store, collection, images, left_out), store.call(store.count, collection)
        except StoreError:  # unless the last shard found all images meanwhile, and switched
            staged, live = collection, store.call(store.find, name)
            if (collection := _open_collection(store, facts, name, live, replace=replace)) == staged:
                raise
            held, total = _count_held(store, collection, images, left_out), store.call(store.count, collection)
        is_new = collection != live
        is_last = shard.number == shard.count
        is_complete = is_last and (shard == WHOLE or _is_complete(store, collection, listed, model, options))
        if is_complete and is_new:
            if source is None:
                _check_unchanged(store, listed, str(live), collection)
            store.call(store.switch, name, collection)
            collection = store.call(store.find, name) or collection
        elif is_complete and uploaded:
            store.call(store.finish, collection)
        is_searchable = store.call(store.find, name) == collection
        replaced = live if is_complete and is_new else None
        return UploadReport(collection, uploaded, len(images) - len(missing), held, total, is_searchable, replaced)


def _list_images(source: Source, root: str | Path | None) -> StoredImages:
    paths, labels = list_source(source)
    names = name_images(paths, root)
    check_names(names, labels)
    return StoredImages(paths, names, labels)


def _list_stored(address: StoreAddress, name: str, root: str | Path | None) -> StoredImages:
    """List the images of the collection that a name stands for, whose stored paths may be relative to a folder."""
    with closing(address.open()) as store:
        if (live := store.call(store.find, name)) is None:
            raise InputError(f"{address}: no collection {name}; dml index --to makes one")
        images = sorted(store.call(store.list_images, live), key=str)
    names, labels = ([image[column] for image in images] for column in (0, 1))
    if not all(names):
        raise InputError(f"{address}: {live} has points without a path, so dml index didn't make them all")
    return StoredImages([os.path.join(os.path.expanduser(root or ""), path) for path in names], names, labels)


def _check_unchanged(store: VectorStore, listed: StoredImages, live: str, collection: str) -> None:
    """Make sure that a collection still holds the listed images, and that its replacement holds no others."""
    before = {*zip(listed.names, listed.labels, strict=True)}
    now, new = ({*store.call(store.list_images, part)} for part in (live, collection))
    if changed := sorted((before ^ now) | (new - now)):
        line = f"{store.address}: {live} has changed meanwhile, such as {printable(changed[0][0])}"
        raise InputError(f"{line}; what was deleted must also be deleted in {collection}; the same command goes on")


def _count_held(store: VectorStore, collection: str, images: StoredImages, left_out: set[int]) -> int:
    """Return how many images a collection holds, without those at some rows; fewer than all others are an error."""
    contents = _read_contents(store, collection, images)
    held = sum(content is not None for row, content in contents if row not in left_out)
    if held != (expected := len(images) - len(left_out)):
        problem = f"{collection} holds {held:,} of the {expected:,} images uploaded or found there"
        raise StoreError(f"{store.address}: {problem}; the same command uploads the rest")
    return held


def _is_complete(
    store: VectorStore, collection: str, images: StoredImages, model: ImageEmbedder, options: dict[str, Any]
) -> bool:
    """Return whether a collection holds all images; unreadable ones may be missing if the options leave them out."""
    contents = _read_contents(store, collection, images)
    missing = ([images.paths[row]] for row, content in contents if content is None)
    may_lack_images = options.get("on_corrupt") == "skip"
    return all(may_lack_images and np.isnan(model.embed(paths, on_corrupt="skip")).any() for paths in missing)


def _open_collection(store: VectorStore, facts: CollectionFacts, name: str, live: str | None, *, replace: bool) -> str:
    """Return the collection to upload to, which is made if it doesn't exist; ``live`` is the one of the name."""
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
        try:
            store.call(store.create, collection, facts)
        except StoreError:  # unless another process made it since the list was read
            if collection not in store.call(store.list_collections):
                raise
    if store.call(store.read_facts, collection) != facts:
        raise InputError(f"{store.address}: dml didn't make the collection {collection}; give another name")
    return collection


def _find_missing(store: VectorStore, collection: str, images: StoredImages) -> list[int]:
    """Return the rows of the images that the collection doesn't hold as they are now."""
    missing = []
    for row, stored in _read_contents(store, collection, images):
        try:
            is_unchanged = stored is not None and images.content(row) == stored
        except UNREADABLE:  # the embedding tells what is wrong with the file, or leaves it out
            is_unchanged = False
        if not is_unchanged:
            missing.append(row)
    return missing


def _read_contents(store: VectorStore, collection: str, images: StoredImages) -> Iterator[tuple[int, str | None]]:
    """Yield the row of each image and the hash that a collection holds for it; None for an image that isn't there."""
    for first in range(0, len(images), IDS_AT_A_TIME):
        ids = {row: images.id(row) for row in range(first, min(first + IDS_AT_A_TIME, len(images)))}
        stored = store.call(store.read_contents, collection, [*ids.values()])
        yield from ((row, stored.get(identifier)) for row, identifier in ids.items())


def _upload(
    store: VectorStore,
    collection: str,
    model: ImageEmbedder,
    images: StoredImages,
    rows: list[int],
    options: dict[str, Any],
) -> set[int]:
    """Embed and upload the images at some rows -> the rows of unreadable ones, which may be left out."""
    done, left_out = 0, set[int]()
    if not rows:
        return left_out
    # a forked process could wait for ever for a lock that a thread of the database's library held
    batches = model.embed_in_batches([images.paths[row] for row in rows], start_method="spawn", **options)
    with progress_bar("uploaded", len(rows)) as advance:
        try:
            for positions, vectors in _join_batches(batches, store.batch_size):
                left_out.update(rows[positions[place]] for place in np.isnan(vectors[:, 0]).nonzero()[0])
                points = images.points([rows[position] for position in positions], vectors)
                if points.ids:
                    store.call(store.upsert, collection, points)
                done += len(points.ids)
                advance(len(positions))
        except StoreError as error:
            raise StoreError(
                f"{error}; {done:,} of {len(rows):,} images are uploaded, the same command goes on with the rest"
            ) from error
    return left_out


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
