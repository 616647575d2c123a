"""What a vector data base has to offer so that images can be uploaded to it."""

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dml.ops.filesystem.plain_text import parse_json

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
        paths: n paths.
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
    """An opened data base. A name that users search by stands for a collection, and can be given to another one.

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
