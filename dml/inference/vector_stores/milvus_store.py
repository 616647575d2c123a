"""Milvus: a server by its address, or a file, which Milvus Lite reads in this process."""

import logging
import os
from pathlib import Path

# else gRPC prints that it sends a server too many signs of life; its errors are exceptions. It is read at the import
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from pymilvus import DataType, MilvusClient
from pymilvus.exceptions import ConnectError, ErrorCode, MilvusException, MilvusUnavailableException

from dml.inference.vector_stores.stores import CollectionFacts, Points, VectorStore

SECONDS = 60
"""Seconds for which pymilvus repeats a call by itself."""

LONGEST_TEXT = 65_535
"""The largest number of bytes of a text in Milvus."""

BUSY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)


class MilvusStore(VectorStore):
    """Collections in Milvus, and its aliases, which are switched in one step.

    Args:
        place: address, such as "http://localhost:19530", or path of a file that ends with .db. The environment
            variable MILVUS_TOKEN holds the token that a server asks for.
    """

    batch_size = 1024
    errors = (MilvusException, grpc.RpcError)

    def __init__(self, place: str) -> None:
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs the trace of each exception that it raises
        uri = place if "://" in place else str(Path(place).expanduser())
        self._client = MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""), timeout=SECONDS)

    def is_transient(self, error: Exception) -> bool:
        """Return whether the connection was lost, or the server is busy."""
        if isinstance(error, grpc.RpcError):
            return error.code() in BUSY
        is_unavailable = isinstance(error, ConnectError | MilvusUnavailableException)
        code = getattr(error, "code", None)
        return is_unavailable or getattr(error, "retriable", False) or code in (*BUSY, ErrorCode.RATE_LIMIT)

    def list_collections(self) -> set[str]:
        """Return the names of all collections."""
        return {*self._client.list_collections()}

    def find(self, name: str) -> str | None:
        """Return the collection of an alias, or one that has this name itself."""
        for collection in self._client.list_collections():
            if collection == name or name in self._client.list_aliases(collection)["aliases"]:
                return str(collection)
        return None

    def read_facts(self, collection: str) -> CollectionFacts | None:
        """Return the facts in the collection's properties."""
        return CollectionFacts.decode(self._client.describe_collection(collection).get("properties", {}).get("dml"))

    def create(self, collection: str, facts: CollectionFacts) -> None:
        """Make a collection that compares by cosine similarity, and whose readers see each upload at once."""
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=36)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=facts.dimension)
        for name in ("path", "label", "content"):
            schema.add_field(name, DataType.VARCHAR, max_length=LONGEST_TEXT)
        indexes = self._client.prepare_index_params()
        indexes.add_index("vector", index_type="AUTOINDEX", metric_type="COSINE")
        self._client.create_collection(
            collection,
            schema=schema,
            index_params=indexes,
            properties={"dml": facts.encode()},
            consistency_level="Strong",
        )

    def read_contents(self, collection: str, ids: list[str]) -> dict[str, str]:
        """Return the hashes of the images that are there, by id."""
        records = self._client.get(collection, ids=ids, output_fields=["content"])
        return {record["id"]: record["content"] for record in records}

    def list_images(self, collection: str) -> list[tuple[str, str]]:
        """Return the stored path and the label of each image."""
        pages = self._client.query_iterator(collection, batch_size=1000, output_fields=["path", "label"])
        return [(record["path"], record["label"]) for page in iter(pages.next, []) for record in page]

    def upsert(self, collection: str, points: Points) -> None:
        """Add or replace images."""
        rows = zip(points.ids, points.vectors, points.payloads(), strict=True)
        self._client.upsert(
            collection, [{"id": identifier, "vector": vector, **payload} for identifier, vector, payload in rows]
        )

    def count(self, collection: str) -> int:
        """Return the number of images in a collection."""
        return int(self._client.query(collection, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def switch(self, name: str, collection: str) -> None:
        """Give the alias to a collection, in one call."""
        give = self._client.alter_alias if self.find(name) else self._client.create_alias
        give(collection_name=collection, alias=name)

    def close(self) -> None:
        """Close the connection, or the file."""
        self._client.close()
