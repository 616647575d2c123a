"""The vector databases to which images can be uploaded: their addresses, what a store offers, and repeated calls."""

import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from time import sleep
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dml.runtime.errors import InputError, suggest
from dml.runtime.escaping import printable
from dml.runtime.filesystem.plain_text import parse_json
from dml.runtime.libraries.extras import check_installed

logger = logging.getLogger(__name__)

FORMAT = 1
"""The version of the facts and columns in a collection."""


@dataclass(frozen=True)
class CollectionFacts:
    """What is stored with a collection: which model its vectors are of.

    Args:
        fingerprint: the model's `ImageEmbedder.fingerprint`.
        geometry: how vectors are compared, such as "cosine".
        dimension: size D of the vectors.
        format: version of the facts and columns.
    """

    fingerprint: str
    geometry: str
    dimension: int
    format: int = FORMAT

    def encode(self) -> str:
        """Return the facts as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: Any) -> "CollectionFacts | None":
        """Read facts that `encode` wrote; None if the text is none, as in a collection that dml didn't make.

        >>> CollectionFacts.decode(CollectionFacts("ab12", "cosine", 8).encode())
        CollectionFacts(fingerprint='ab12', geometry='cosine', dimension=8, format=1)
        """
        try:
            return cls(**parse_json(text))
        except (TypeError, ValueError):
            return None


class Points(NamedTuple):
    """Images to upload, each with its vector.

    Args:
        ids: n ids, UUIDs.
        vectors: (n, D) vectors.
        paths: n paths of the images.
        labels: n names of classes; empty strings where none is known.
        contents: n hashes of the files and labels, which tell later whether an image has changed.
    """

    ids: list[str]
    vectors: NDArray[np.float32]
    paths: list[str]
    labels: list[str]
    contents: list[str]

    def payloads(self) -> list[dict[str, str]]:
        """Return what is stored beside each vector: path, label and content."""
        columns = zip(self.paths, self.labels, self.contents, strict=True)
        return [{"path": path, "label": label, "content": content} for path, label, content in columns]


class VectorStore(Protocol):
    """An opened database. A name that users search by stands for a collection, and can be given to another one.

    Attributes:
        batch_size: number of images that are uploaded at a time.
        errors: exceptions of the library, for a server that can't be reached or that refuses something.
    """

    batch_size: int
    errors: tuple[type[Exception], ...]

    def is_transient(self, error: Exception) -> bool:
        """Return whether the same call may succeed in a moment, as after a lost connection."""

    def find(self, name: str) -> str | None:
        """Return the collection that a name stands for; None if there is none."""

    def exists(self, collection: str) -> bool:
        """Return whether there is a collection of this name, which is no alias."""

    def read_facts(self, collection: str) -> CollectionFacts | None:
        """Return the facts of a collection; None if dml didn't make it."""

    def create(self, collection: str, facts: CollectionFacts) -> None:
        """Make an empty collection."""

    def read_contents(self, collection: str, ids: list[str]) -> dict[str, str]:
        """Return the hashes of the images that are in a collection, by id, of those asked for."""

    def upsert(self, collection: str, points: Points) -> None:
        """Add images, or replace those with the same ids; when it returns they are stored."""

    def count(self, collection: str) -> int:
        """Return the number of images in a collection."""

    def switch(self, name: str, collection: str) -> None:
        """Let a name stand for a collection, in one step: who searches by it gets the old one or the new one."""

    def finish(self, collection: str) -> None:
        """Tidy up after images were added to a collection that is in use."""

    def close(self) -> None:
        """Close the connection, or the files."""


Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each repetition."""


class StoreError(InputError):
    """An error of a database that can't be reached, or refuses something; the message is one line."""


class Retries:
    """Calls a database, and repeats a call whose connection was lost.

    The first call isn't repeated: if nothing has ever answered, the address is most likely wrong.

    Args:
        store: database that is called.
        address: address of the database, for error lines.
    """

    def __init__(self, store: VectorStore, address: str) -> None:
        self._store = store
        self._address = address
        self._has_answered = False

    def call(self, function: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        """Call a method of the database.

        Raises:
            StoreError: if the database refuses it, or hasn't answered after all repetitions.
        """
        waits = [*WAITS] if self._has_answered else []
        while True:
            try:
                answer = function(*args, **kwargs)
            except self._store.errors as error:
                if isinstance(error, InputError):
                    raise
                if not waits or not self._store.is_transient(error):
                    raise StoreError(f"{self._address}: {describe(error)}") from error
                logger.warning("%s: %s; again in %g s", self._address, describe(error), waits[0])
            else:
                self._has_answered = True
                return answer
            sleep(waits.pop(0))


def describe(error: Exception) -> str:
    """Return a library's description of an error, in one line."""
    return printable(" ".join(str(error).split())[:500]) or type(error).__name__


NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
LONGEST_NAME = 100


class StoreKind(NamedTuple):
    """A kind of database.

    Args:
        module: name of the module of its store, which imports the library.
        store: name of the class of its store.
        library: name of the library, as Python imports it.
        example: an address of this kind.
        schemes: beginnings of the addresses of its servers; without any, the library decides.
    """

    module: str
    store: str
    library: str
    example: str
    schemes: tuple[str, ...] = ()


KINDS = {
    "qdrant": StoreKind(
        "qdrant_store", "QdrantStore", "qdrant_client", "qdrant:http://localhost:6333", ("http", "https")
    ),
    "lancedb": StoreKind("lancedb_store", "LanceStore", "lancedb", "lancedb:folder"),
    "milvus": StoreKind(
        "milvus_store", "MilvusStore", "pymilvus", "milvus:http://localhost:19530", ("http", "https", "tcp")
    ),
}


class StoreAddress(NamedTuple):
    """The place of a database.

    Args:
        kind: one of `KINDS`.
        place: address, folder or file that the library takes.
    """

    kind: str
    place: str

    def __str__(self) -> str:
        return printable(f"{self.kind}:{self.place}")

    @classmethod
    def parse(cls, text: str) -> "StoreAddress":
        """Read an address such as "qdrant:http://localhost:6333", and check that the library is installed.

        Raises:
            InputError: if the kind is unknown, there is no place, or the library is missing.
        """
        kind, _, place = text.partition(":")
        if kind not in KINDS:
            raise InputError(
                f"--to {printable(text)}: expected KIND:PLACE, such as {KINDS['qdrant'].example}{suggest(kind, KINDS)}"
            )
        if not place:
            raise InputError(f"--to {printable(text)}: the place is missing, as in {KINDS[kind].example}")
        scheme, separator, _ = place.partition("://")
        if separator and KINDS[kind].schemes and scheme not in KINDS[kind].schemes:
            raise InputError(
                f"--to {printable(text)}: an address begins with {' or '.join(KINDS[kind].schemes)}, as in "
                f"{KINDS[kind].example}"
            )
        check_installed(KINDS[kind].library, extra=kind)
        if kind == "milvus" and "://" not in place:
            if not place.endswith(".db"):
                raise InputError(f"--to {printable(text)}: the name of Milvus Lite's file must end with .db")
            check_installed("milvus_lite", extra=kind)
        return cls(kind, place)

    def open(self) -> VectorStore:
        """Open the database; its library is imported now.

        Raises:
            StoreError: if it can't be reached.
        """
        kind = KINDS[self.kind]
        # Processes that decode images are forked while threads of gRPC run, of which it would print a line each time.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # read when grpc is imported
        store_class = getattr(import_module(f"dml.inference.vector_stores.{kind.module}"), kind.store)
        try:
            store: VectorStore = store_class(self.place)
        except (*store_class.errors, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise StoreError(f"{self}: {describe(error)}") from error
        return store


def check_name(name: str) -> None:
    """Check the name of a collection, by the strictest rule of the databases."""
    if len(name) > LONGEST_NAME or not NAME.fullmatch(name):
        raise InputError(
            f"--collection {printable(name)}: expected a letter, and up to {LONGEST_NAME - 1} letters, digits and "
            "single underscores, such as my_photos"
        )
