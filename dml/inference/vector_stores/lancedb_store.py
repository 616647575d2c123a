"""LanceDB: tables in a folder, or in a bucket such as s3://..."""

import os
from datetime import timedelta
from pathlib import Path

os.environ.setdefault("LANCEDB_LOG", "error")  # else it warns of each table that it makes; it is read at the import

import lancedb
import pyarrow as pa

from dml.inference.vector_stores.stores import CollectionFacts, Points, VectorStore

COLUMNS = ["id", "vector", "path", "label", "content"]

ALL_TABLES = 10_000
"""Number of tables on one page of the list of tables."""


class LanceStore(VectorStore):
    """Tables in LanceDB. It has no aliases, so the finished table is copied over the one that users search in.

    The copy becomes visible as one new version: who has the table open searches in the old version until then.

    Args:
        place: path of a folder, or an address that LanceDB knows.
    """

    batch_size = 4096
    errors = (OSError, RuntimeError, ValueError)  # LanceDB raises a ValueError for a table that is there, or isn't

    def __init__(self, place: str) -> None:
        self._database = lancedb.connect(place if "://" in place else Path(place).expanduser())

    def is_transient(self, error: Exception) -> bool:
        """Return whether the connection was lost, or a listed table isn't there yet; LanceDB repeats other calls."""
        return isinstance(error, ConnectionError | TimeoutError) or "was not found" in str(error)

    def list_collections(self) -> set[str]:
        """Return the names of all tables."""
        names: set[str] = set()
        page = None
        while page is None or page.page_token:
            page = self._database.list_tables(page_token=page and page.page_token, limit=ALL_TABLES)
            names.update(page.tables)
        return names

    def read_facts(self, collection: str) -> CollectionFacts | None:
        """Return the facts in the metadata of the table's schema."""
        return CollectionFacts.decode((self._database.open_table(collection).schema.metadata or {}).get(b"dml"))

    def create(self, collection: str, facts: CollectionFacts) -> None:
        """Make an empty table."""
        texts = [(name, pa.string()) for name in COLUMNS if name != "vector"]
        vector = ("vector", pa.list_(pa.float32(), facts.dimension))
        schema = pa.schema([texts[0], vector, *texts[1:]], metadata={"dml": facts.encode()})
        self._database.create_table(collection, schema=schema)

    def read_contents(self, collection: str, ids: list[str]) -> dict[str, str]:
        """Return the hashes of the images that are there, by id; ids are UUIDs, which need no quoting."""
        listed = ", ".join(f"'{identifier}'" for identifier in ids)
        query = self._database.open_table(collection).search().where(f"id IN ({listed})")
        table = query.select(["id", "content"]).limit(len(ids)).to_arrow()
        return dict(zip(table.column("id").to_pylist(), table.column("content").to_pylist(), strict=True))

    def list_images(self, collection: str) -> list[tuple[str, str]]:
        """Return the stored path and the label of each image."""
        table = self._database.open_table(collection).search().select(["path", "label"]).to_arrow()
        return [*zip(table.column("path").to_pylist(), table.column("label").to_pylist(), strict=True)]

    def upsert(self, collection: str, points: Points) -> None:
        """Add or replace images, as one new version of the table."""
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.vectors.reshape(-1)), points.vectors.shape[1])
        columns = (points.ids, vectors, points.paths, points.labels, points.contents)
        merge = self._database.open_table(collection).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(
            pa.table(dict(zip(COLUMNS, columns, strict=True)))
        )

    def count(self, collection: str) -> int:
        """Return the number of images in a table."""
        return int(self._database.open_table(collection).count_rows())

    def switch(self, name: str, collection: str) -> None:
        """Copy a table over another one, as one new version of it, and delete the first."""
        source = self._database.open_table(collection)
        batches = source.search().select(COLUMNS).to_batches()
        reader = pa.RecordBatchReader.from_batches(source.schema, batches)
        self._database.create_table(name, data=reader, schema=source.schema, mode="overwrite")
        self._database.drop_table(collection)

    def finish(self, collection: str) -> None:
        """Join the small files of the batches; versions stay for a week, for those who still read them."""
        self._database.open_table(collection).optimize(cleanup_older_than=timedelta(days=7))
