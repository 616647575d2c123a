"""The vector databases to which images can be uploaded: their addresses, and what a store of one offers.

A new database is a module with a subclass of `VectorStore`, and an entry of `KINDS`.
"""

import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from time import sleep
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from dml.runtime.errors import InputError, check_installed, suggest
from dml.runtime.reading import parse_json
from dml.runtime.text import printable

logger = logging.getLogger(__name__)

FORMAT = 1
"""The version of the facts and columns in a collection."""

WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each repetition of a call whose connection was lost."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class StoreError(InputError):
    """An error of a database that can't be reached, or refuses something; the message is one line."""


@dataclass(frozen=True)
class CollectionFacts:
    """What is stored with a collection: which model its vectors are of.

    Args:
        fingerprint: the model's `ImageEmbedder.fingerprint`.
        dimension: size D of the vectors.
        format: version of the facts and columns.
        root: folder that the paths are relative to, on the machine that made the collection; "" for absolute paths.
    """

    fingerprint: str
    dimension: int
    format: int = FORMAT
    root: str = field(default="", compare=False)

    def encode(self) -> str:
        """Return the facts as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: Any) -> "CollectionFacts | None":
        """Read facts that `encode` wrote; None if the text is none, as in a collection that dml didn't make.

        >>> CollectionFacts.decode(CollectionFacts("ab12", 8).encode())
        CollectionFacts(fingerprint='ab12', dimension=8, format=1, root='')
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


class VectorStore(ABC):
    """An opened database. A name that users search by stands for a collection, and can be given to another one.

    A subclass is made from a place: an address, a folder or a file.

    Attributes:
        batch_size: number of images that are uploaded at a time.
        errors: exceptions of the library, for a server that can't be reached or that refuses something.
        address: kind and place of the database, for error lines.
    """

    batch_size: ClassVar[int]
    errors: ClassVar[tuple[type[Exception], ...]]
    address: str
    _has_answered = False

    def call(self, method: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        """Call a method of this store, and repeat the call if the connection was lost.

        The first call isn't repeated: if nothing has ever answered, the address is most likely wrong.

        Raises:
            StoreError: if the database refuses it, or hasn't answered after all repetitions.
        """
        waits = [*WAITS] if self._has_answered else []
        while True:
            try:
                answer = method(*args, **kwargs)
            except InputError:
                raise
            except self.errors as error:
                if not waits or not self.is_transient(error):
                    raise StoreError(f"{self.address}: {_describe(error)}") from error
                logger.warning("%s: %s; again in %g s", self.address, _describe(error), waits[0])
                sleep(waits.pop(0))
            else:
                self._has_answered = True
                return answer

    @abstractmethod
    def is_transient(self, error: Exception) -> bool:
        """Return whether the same call may succeed in a moment, as after a lost connection or from a busy server."""

    @abstractmethod
    def list_collections(self) -> set[str]:
        """Return the names of all collections, without aliases."""

    def find(self, name: str) -> str | None:
        """Return the collection that a name stands for, which is its own in a database without aliases, or None."""
        return name if name in self.list_collections() else None

    @abstractmethod
    def read_facts(self, collection: str) -> CollectionFacts | None:
        """Return the facts of a collection; None if dml didn't make it."""

    @abstractmethod
    def create(self, collection: str, facts: CollectionFacts) -> None:
        """Make an empty collection that compares by cosine similarity."""

    @abstractmethod
    def read_contents(self, collection: str, ids: list[str]) -> dict[str, str]:
        """Return the hashes of the images that are in a collection, by id, of those asked for."""

    @abstractmethod
    def list_images(self, collection: str) -> list[tuple[str, str]]:
        """Return the stored path and the label of each image in a collection."""

    @abstractmethod
    def upsert(self, collection: str, points: Points) -> None:
        """Add images, or replace those with the same ids; when it returns they are stored."""

    @abstractmethod
    def count(self, collection: str) -> int:
        """Return the number of images in a collection."""

    @abstractmethod
    def switch(self, name: str, collection: str) -> None:
        """Let a name stand for a collection, in one step: who searches by it gets the old one or the new one."""

    def finish(self, collection: str) -> None:  # noqa: B027
        """Tidy up after images were added to a collection that is in use, if the database needs it."""

    def close(self) -> None:  # noqa: B027
        """Close the connection, or the files, if any are open."""


def _describe(error: Exception) -> str:
    """Return a library's description of an error, in one line."""
    return printable(" ".join(str(error).split())[:500]) or type(error).__name__


class LocalFile(NamedTuple):
    """The file that a database keeps without a server: what reads it, and the end of its name."""

    library: str
    title: str
    ending: str


class StoreKind(NamedTuple):
    """A kind of database.

    Args:
        store: module and class of its store, below this package; the module imports the library.
        library: name of the library, as Python imports it.
        example: an address of this kind.
        schemes: beginnings of the addresses of its servers; without any, the library decides.
        local_file: file that stands for a database without a server; None takes any folder.
    """

    store: str
    library: str
    example: str
    schemes: tuple[str, ...] = ()
    local_file: LocalFile | None = None


KINDS = {
    "qdrant": StoreKind("qdrant_store.QdrantStore", "qdrant_client", "qdrant:http://localhost:6333", ("http", "https")),
    "lancedb": StoreKind("lancedb_store.LanceStore", "lancedb", "lancedb:folder"),
    "milvus": StoreKind(
        "milvus_store.MilvusStore",
        "pymilvus",
        "milvus:http://localhost:19530",
        ("http", "https", "tcp"),
        LocalFile("milvus_lite", "Milvus Lite", ".db"),
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
        name, _, place = text.partition(":")
        shown = f"--to {printable(text)}"
        if name not in KINDS:
            raise InputError(f"{shown}: expected KIND:PLACE, such as {KINDS['qdrant'].example}{suggest(name, KINDS)}")
        kind = KINDS[name]
        if not place:
            raise InputError(f"{shown}: the place is missing, as in {kind.example}")
        scheme, separator, _ = place.partition("://")
        if separator and kind.schemes and scheme not in kind.schemes:
            raise InputError(f"{shown}: an address begins with {' or '.join(kind.schemes)}, as in {kind.example}")
        check_installed(kind.library, extra=name)
        if kind.local_file and not separator:
            if not place.endswith(kind.local_file.ending):
                raise InputError(
                    f"{shown}: the name of {kind.local_file.title}'s file must end with {kind.local_file.ending}"
                )
            check_installed(kind.local_file.library, extra=name)
        return cls(name, place)

    def open(self) -> VectorStore:
        """Open the database; its library is imported now.

        Raises:
            StoreError: if it can't be reached.
        """
        # Processes that decode images are forked while threads of gRPC run, of which it would print a line each time.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # read when grpc is imported
        module, _, name = KINDS[self.kind].store.partition(".")
        store_class = getattr(import_module(f"dml.inference.vector_stores.{module}"), name)
        try:
            store: VectorStore = store_class(self.place)
        except InputError:
            raise
        except (*store_class.errors, ValueError) as error:
            raise StoreError(f"{self}: {_describe(error)}") from error
        store.address = str(self)
        return store


NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
LONGEST_NAME = 100


def check_name(name: str) -> None:
    """Check the name of a collection, by the strictest rule of the databases."""
    if len(name) > LONGEST_NAME or not NAME.fullmatch(name):
        raise InputError(
            f"--collection {printable(name)}: expected a letter, and up to {LONGEST_NAME - 1} letters, digits and "
            "single underscores, such as my_photos"
        )
