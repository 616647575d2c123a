"""Images as a vector data base stores them: ids, paths, and hashes of their content."""

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.image_files.contents import read_content
from dml.inference.vector_stores.store_protocol import Points
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.filesystem.paths import absolute_path

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "dml:images")


@dataclass(frozen=True)
class StoredImages:
    """Images as a data base stores them.

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
