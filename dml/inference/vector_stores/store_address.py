"""Where vectors are uploaded to: the kind of a data base, and its place."""

import os
import re
from importlib import import_module
from typing import NamedTuple

from dml.inference.vector_stores.retries import StoreError, describe
from dml.inference.vector_stores.store_protocol import VectorStore
from dml.ops.errors import InputError, suggest
from dml.ops.escaping import printable
from dml.ops.libraries.extras import check_installed

NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
LONGEST_NAME = 100


class StoreKind(NamedTuple):
    """A kind of data base.

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
    """The place of a data base.

    Args:
        kind: one of `KINDS`.
        place: what the library takes: an address, a folder, or a file.
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
        """Open the data base; its library is imported now.

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
    """Check the name of a collection, by the strictest rule of the data bases.

    Raises:
        InputError: if it holds something else than letters, digits and single underscores.
    """
    if len(name) > LONGEST_NAME or not NAME.fullmatch(name):
        raise InputError(
            f"--collection {printable(name)}: expected a letter, and up to {LONGEST_NAME - 1} letters, digits and "
            "single underscores, such as my_photos"
        )
