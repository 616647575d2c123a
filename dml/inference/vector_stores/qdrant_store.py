"""Qdrant: a server by its address, or a folder, which Qdrant's client reads in this process."""

import os
from pathlib import Path
from typing import Any

import httpx
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from dml.inference.vector_stores.stores import CollectionFacts, Points, VectorStore
from dml.runtime.errors import InputError
from dml.runtime.text import printable

SECONDS = 60
"""Seconds after which a call that has no answer counts as failed."""

BUSY = (408, 429, 500, 502, 503, 504)
"""HTTP's codes for a server, or what stands before it, that may answer in a moment."""


class QdrantStore(VectorStore):
    """Collections in Qdrant, and its aliases, which are switched in one step.

    Args:
        place: address, such as "http://localhost:6333", or path of a folder. The environment variable QDRANT_API_KEY
            holds the key that a server asks for.

    Raises:
        InputError: if the folder is in use.
    """

    batch_size = 256
    errors = (ApiException, QdrantException)

    def __init__(self, place: str) -> None:
        if "://" in place:
            key = os.environ.get("QDRANT_API_KEY")
            self._client = QdrantClient(url=place, api_key=key, timeout=SECONDS, check_compatibility=False)
            return
        try:
            self._client = QdrantClient(path=str(Path(place).expanduser()))
        except RuntimeError as error:
            if "already accessed" not in str(error):
                raise
            raise InputError(f"qdrant:{printable(place)}: another process has opened this folder") from error

    def is_transient(self, error: Exception) -> bool:
        """Return whether the connection was lost, or the server is busy."""
        if isinstance(error, ResponseHandlingException):
            return isinstance(error.source, httpx.TransportError)
        if isinstance(error, UnexpectedResponse):
            return error.status_code in BUSY
        return isinstance(error, ResourceExhaustedResponse)

    def find(self, name: str) -> str | None:
        """Return the collection of an alias, or one that has this name itself."""
        aliases = {alias.alias_name: alias.collection_name for alias in self._client.get_aliases().aliases}
        return aliases.get(name) or super().find(name)

    def list_collections(self) -> set[str]:
        """Return the names of all collections."""
        return {description.name for description in self._client.get_collections().collections}

    def read_facts(self, collection: str) -> CollectionFacts | None:
        """Return the facts in the collection's metadata."""
        metadata = self._client.get_collection(collection).config.metadata
        return CollectionFacts.decode((metadata or {}).get("dml"))

    def create(self, collection: str, facts: CollectionFacts) -> None:
        """Make a collection that compares by cosine similarity."""
        vectors = models.VectorParams(size=facts.dimension, distance=models.Distance.COSINE)
        self._client.create_collection(collection, vectors_config=vectors, metadata={"dml": facts.encode()})
        if self.read_facts(collection) != facts:
            self._client.delete_collection(collection)
            raise InputError(f"{collection}: this Qdrant server keeps no metadata of collections; update the server")

    def read_contents(self, collection: str, ids: list[str]) -> dict[str, str]:
        """Return the hashes of the images that are there, by id."""
        records = self._client.retrieve(collection, ids=ids, with_payload=["content"], with_vectors=False)
        return {str(record.id): (record.payload or {}).get("content", "") for record in records}

    def list_images(self, collection: str) -> list[tuple[str, str]]:
        """Return the stored path and the label of each image."""
        pages: list[Any] = []
        offset = None
        while not pages or offset is not None:
            page, offset = self._client.scroll(collection, limit=1000, offset=offset, with_payload=["path", "label"])
            pages.append(page)
        payloads = [record.payload or {} for page in pages for record in page]
        return [(payload.get("path", ""), payload.get("label", "")) for payload in payloads]

    def upsert(self, collection: str, points: Points) -> None:
        """Add or replace images, and wait until they are stored."""
        batch = models.Batch(ids=[*points.ids], vectors=points.vectors.tolist(), payloads=[*points.payloads()])
        self._client.upsert(collection, points=batch, wait=True)

    def count(self, collection: str) -> int:
        """Return the number of images in a collection."""
        count: int = self._client.count(collection, exact=True).count
        return count

    def switch(self, name: str, collection: str) -> None:
        """Give the alias to a collection; Qdrant does all operations of one call at once."""
        old = models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=name))
        new = models.CreateAliasOperation(create_alias=models.CreateAlias(collection_name=collection, alias_name=name))
        self._client.update_collection_aliases([old, new] if self.find(name) else [new])

    def close(self) -> None:
        """Close the connection, or the folder."""
        self._client.close()
