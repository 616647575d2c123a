"""Upload of images to a vector database: Qdrant, LanceDB and Milvus hold the vectors where one machine is not enough.

- A collection holds the vectors of one model, and is named after its fingerprint, such as ``dml_0123456789abcdef``.
- A point is an image: its vector, which is compared by cosine similarity, its path and its label. Its id depends on the
  path alone, absolute and without links, or relative to a root. So the same upload replaces each point by itself.
"""

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.data.contents import identify_images
from dml.inference.embedder import Embedder
from dml.inference.embedding_files import check_names, join_blocks, name_images
from dml.inference.image_inputs import check_readable, list_source
from dml.inference.index_items import IndexItems
from dml.runtime.errors import InputError, check_installed, suggest
from dml.runtime.files import expand_home
from dml.runtime.text import console, in_markup, printable, progress_bar

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "dml:images")
Vectors = NDArray[np.float32]

SECONDS = 60  # after which a call without an answer counts as failed
AT_ONCE = 1000  # points that are listed or deleted at a time
QUIET = {"LANCEDB_LOG": "error", "GRPC_VERBOSITY": "NONE"}  # read when the libraries are imported


class _Qdrant:
    """A server, or a folder; the environment variable QDRANT_API_KEY holds the key that a server asks for."""

    libraries, example, batch_size = ("qdrant_client",), "qdrant:http://localhost:6333", 256

    def __init__(self) -> None:
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ApiException

        self.errors = (ApiException, QdrantException, RuntimeError, ValueError)  # a folder in use; a bad address

    def open(self, place: str, collection: str, dimension: int) -> None:
        from qdrant_client import QdrantClient, models

        options: dict[str, Any] = {"path": str(expand_home(place))}
        if "://" in place:
            key = os.environ.get("QDRANT_API_KEY")
            options = {"url": place, "api_key": key, "timeout": SECONDS, "check_compatibility": False}
        self._client, self._name = QdrantClient(**options), collection
        if not self._client.collection_exists(collection):
            vectors = models.VectorParams(size=dimension, distance=models.Distance.COSINE)
            self._client.create_collection(collection, vectors_config=vectors)

    def upsert(self, vectors: Vectors, ids: list[str], paths: list[str], labels: list[str]) -> None:
        from qdrant_client.models import Batch

        texts = [{"path": path, "label": label} for path, label in zip(paths, labels, strict=True)]
        self._client.upsert(self._name, points=Batch(ids=[*ids], vectors=vectors.tolist(), payloads=texts), wait=True)

    def list_paths(self) -> Iterator[tuple[str, str]]:
        offset: Any = None
        while True:
            page, offset = self._client.scroll(self._name, limit=AT_ONCE, offset=offset, with_payload=["path"])
            yield from ((str(record.id), (record.payload or {}).get("path", "")) for record in page)
            if offset is None:
                return

    def delete(self, ids: list[str]) -> None:
        self._client.delete(self._name, [*ids], wait=True)

    def close(self) -> None:
        self._client.close()


class _LanceDB:
    """A folder, or an address that LanceDB knows, such as s3://..."""

    libraries, example, batch_size = ("lancedb",), "lancedb:folder", 4096
    errors = (OSError, RuntimeError, ValueError)

    def open(self, place: str, collection: str, dimension: int) -> None:
        import lancedb
        import pyarrow as pa

        vector, text = pa.list_(pa.float32(), dimension), pa.string()
        self._schema = pa.schema([("id", text), ("vector", vector), ("path", text), ("label", text)])
        database = lancedb.connect(place if "://" in place else expand_home(place))
        self._table = database.create_table(collection, schema=self._schema, exist_ok=True)

    def upsert(self, vectors: Vectors, ids: list[str], paths: list[str], labels: list[str]) -> None:
        import pyarrow as pa

        rows = pa.Table.from_arrays([ids, [*vectors], paths, labels], schema=self._schema)
        self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def list_paths(self) -> Iterator[tuple[str, str]]:
        for batch in self._table.search().select(["id", "path"]).to_batches():
            yield from zip(batch["id"].to_pylist(), batch["path"].to_pylist(), strict=True)

    def delete(self, ids: list[str]) -> None:
        self._table.delete(f"id IN ({', '.join(map(repr, ids))})")  # UUIDs need no other quoting

    def close(self) -> None:
        # joins the small files of the batches; versions stay for a week, for those who still read them
        self._table.optimize(cleanup_older_than=timedelta(days=7))


class _Milvus:
    """A server, or a file that ends with .db; the environment variable MILVUS_TOKEN holds a server's token."""

    libraries, example, batch_size = ("pymilvus", "milvus_lite"), "milvus:http://localhost:19530", 1024

    def __init__(self) -> None:
        import grpc
        from pymilvus.exceptions import MilvusException

        for name in ("grpc", "pymilvus"):  # they log the trace of each exception, also of those that they expect
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.errors = (MilvusException, grpc.RpcError)

    def open(self, place: str, collection: str, dimension: int) -> None:
        from pymilvus import MilvusClient

        uri, token = place if "://" in place else str(expand_home(place)), os.environ.get("MILVUS_TOKEN", "")
        self._client, self._name = MilvusClient(uri, token=token, timeout=SECONDS), collection
        if not self._client.has_collection(collection):  # path and label are dynamic fields
            keys = {"primary_field_name": "id", "id_type": "string", "max_length": 36}
            options = {"metric_type": "COSINE", "consistency_level": "Strong"}
            self._client.create_collection(collection, dimension, **keys, **options)
        self._client.load_collection(collection)  # a file is opened without its collections

    def upsert(self, vectors: Vectors, ids: list[str], paths: list[str], labels: list[str]) -> None:
        rows = zip(ids, vectors, paths, labels, strict=True)
        self._client.upsert(
            self._name, [dict(zip(("id", "vector", "path", "label"), row, strict=True)) for row in rows]
        )

    def list_paths(self) -> Iterator[tuple[str, str]]:
        pages = self._client.query_iterator(self._name, batch_size=AT_ONCE, output_fields=["path"])
        for page in iter(pages.next, []):
            yield from ((record["id"], record["path"]) for record in page)

    def delete(self, ids: list[str]) -> None:
        self._client.delete(self._name, ids=ids)

    def close(self) -> None:
        self._client.close()


KINDS: dict[str, type[_Qdrant | _LanceDB | _Milvus]] = {"qdrant": _Qdrant, "lancedb": _LanceDB, "milvus": _Milvus}
"""The databases by the beginnings of their addresses, which are also the names of their extras."""


def parse_address(text: str) -> tuple[str, str]:
    """Split an address such as "qdrant:http://localhost:6333" into kind and place."""
    name, _, place = text.partition(":")
    if name not in KINDS or not place:
        example = KINDS.get(name, _Qdrant).example
        raise InputError(f"--to {printable(text)}: expected KIND:PLACE, such as {example}{suggest(name, KINDS)}")
    check_installed(*KINDS[name].libraries, extra=name)
    return name, place


def upload_images(
    model: Embedder, address: str, source: str, *, root: str | None = None, prune: bool = False, **options: Any
) -> tuple[str, int]:
    """Embed the images of a source, and upload them to the model's collection -> its name, and how many were uploaded.

    Args:
        root: folder that the stored paths are relative to; None stores absolute paths.
        prune: whether images below the folder ``source``, or else below ``root``, that the source lacks are deleted
            from the collection at the end; a line says before how many these are.
    """
    name, place = parse_address(address)
    folder = source if expand_home(source).is_dir() else root
    if prune and folder is None:
        raise InputError("--prune: deletes what a folder lacks; give a folder of images, or --root")
    paths, labels = list_source(source)
    names = name_images(paths, root)
    check_names(names, labels)
    ids = _make_ids(IndexItems.number(paths, labels).identities, root)
    os.environ.update(QUIET)
    store, collection = KINDS[name](), f"dml_{model.fingerprint}"
    # a forked process could wait for ever for a lock that a thread of the database's library held
    batches = model.embed_in_batches(paths, start_method="spawn", **options)
    readable = 0
    with _one_line(address, store.errors):
        store.open(place, collection, model.dimension)
    with closing(store), progress_bar("uploaded", len(paths)) as advance:
        blocks = (vectors for _, vectors in batches)
        for rows, vectors in join_blocks(blocks, len(paths), store.batch_size, advance):
            is_read = ~np.isnan(vectors[:, 0])
            readable += int(is_read.sum())
            texts = [[*compress(column[rows], is_read)] for column in (ids, names, labels)]
            with _one_line(address, store.errors):
                if is_read.any():
                    store.upsert(vectors[is_read], *texts)
        check_readable(readable, len(paths))
        with _one_line(address, store.errors):
            if prune and folder:
                stored = dict(store.list_paths())
                outdated = _find_outdated(stored, {*ids}, folder, root)
                line = f"{len(outdated):,} of {len(stored):,} images are deleted, those below {folder} that it lacks"
                console.print(in_markup(f"{address}: {line}"), soft_wrap=True)
                for first in range(0, len(outdated), AT_ONCE):
                    store.delete(outdated[first : first + AT_ONCE])
    return collection, readable


def _make_ids(identities: Sequence[str], root: str | None) -> list[str]:
    """Return the UUIDs of images by what `identify_images` names them."""
    if root is not None:
        base = os.path.realpath(expand_home(root))
        identities = [Path(os.path.relpath(identity, base)).as_posix() for identity in identities]
    return [str(uuid.uuid5(NAMESPACE, identity)) for identity in identities]


def _find_outdated(stored: dict[str, str], ids: set[str], folder: str, root: str | None) -> list[str]:
    """Return the ids of the stored images below a folder that aren't among some ids."""
    base, beginning = "" if root is None else os.path.realpath(expand_home(root)), os.path.realpath(expand_home(folder))
    own = {point: path for point, path in stored.items() if path and os.path.isabs(path) == (root is None)}
    identities = identify_images(os.path.join(base, path) for path in own.values())
    below = os.path.join(beginning, "")
    return [point for point, image in zip(own, identities, strict=True) if image.startswith(below) and point not in ids]


@contextmanager
def _one_line(address: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn an exception of a database's library into an error line."""
    try:
        yield
    except errors as error:
        told = printable(" ".join(str(error).split())[:500]) or type(error).__name__
        raise InputError(f"{address}: {told}; the same command may be repeated") from error
