"""An index of vectors that can be changed, saved and opened again: FAISS with ids of one's choice."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from dml.ops.errors import InputError
from dml.retrieval.few_queries import multiplying_few_queries

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

EXACT = "Flat"
"""FAISS's name of the exact index."""

QUERIES_PER_BLOCK = 4096
"""Number of queries that are searched at a time."""


class VectorIndex:
    """Vectors with ids, searched by inner product.

    >>> index = VectorIndex(2)
    >>> index.add(np.eye(2, dtype=np.float32), np.array([7, 9]))
    >>> scores, ids = index.search(np.array([[0.0, 1.0]], np.float32), k=1)
    >>> ids.tolist()
    [[9]]

    Args:
        dimension: size D of the vectors.
        factory: description of the index in the language of FAISS's ``index_factory``: "Flat" is exact; others, such
            as "IVF1024,Flat" or "HNSW32", are faster and may miss neighbours.

    Raises:
        InputError: if FAISS can't make an index of this description.
    """

    def __init__(self, dimension: int, factory: str = EXACT) -> None:
        self.factory = factory
        self.parameters = ""
        try:
            inner = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise InputError(
                f"factory={factory}: FAISS can't make an index of {dimension} numbers by it; {EXACT} would do"
            ) from error
        self._index: Any = faiss.IndexIDMap2(inner)
        self._is_mapped = False

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """The size D of the vectors."""
        return int(self._index.d)

    @property
    def needs_training(self) -> bool:
        """Whether the index has to see vectors by `train` before it takes some."""
        return not self._index.is_trained

    def set_parameters(self, parameters: str) -> None:
        """Set the search parameters of an approximate index, such as "nprobe=32"; "" leaves FAISS's own.

        Raises:
            InputError: if the index has no such parameter.
        """
        if parameters:
            try:
                space: Any = faiss.ParameterSpace()
                space.set_index_parameters(self._index, parameters)
            except (RuntimeError, ValueError) as error:
                raise InputError(
                    f"parameters={parameters}: an index {self.factory} has no such search parameter"
                ) from error
        self.parameters = parameters

    def train(self, vectors: Floats) -> None:
        """Find the cells or codes of an approximate index from vectors (N, D); an exact index needs none.

        Raises:
            InputError: if there are too few vectors.
        """
        try:
            self._index.train(_contiguous(vectors))
        except RuntimeError as error:
            line = str(error).rpartition("Error: ")[2].strip()
            raise InputError(f"factory={self.factory}: {len(vectors)} vectors can't train it ({line})") from error

    def add(self, vectors: Floats, ids: Integers) -> None:
        """Add vectors (N, D) with ids (N,), which the index must not hold yet."""
        self._index.add_with_ids(_contiguous(vectors), np.ascontiguousarray(ids, np.int64))

    def remove(self, ids: Integers) -> int:
        """Remove the vectors with these ids (N,), and return how many there were.

        Raises:
            InputError: if this kind of index can't remove vectors.
        """
        try:
            return int(self._index.remove_ids(np.ascontiguousarray(ids, np.int64)))
        except RuntimeError as error:
            raise InputError(
                f"factory={self.factory}: an index of this kind can't remove or replace vectors; build it again"
            ) from error

    def search(self, queries: Floats, k: int) -> tuple[Floats, Integers]:
        """Find the k vectors with the largest inner products -> scores (Q, k) and ids (Q, k), best first.

        An approximate index may find fewer than k: then the last ids are -1.

        Args:
            queries: vectors (Q, D).
            k: number of neighbours, at most the number of vectors.
        """
        with multiplying_few_queries(self.dimension):
            blocks = [
                self._index.search(_contiguous(queries[start : start + QUERIES_PER_BLOCK]), k)
                for start in range(0, len(queries), QUERIES_PER_BLOCK)
            ]
        if not blocks:
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        return np.concatenate([scores for scores, _ in blocks]), np.concatenate([ids for _, ids in blocks])

    def write(self, path: Path) -> None:
        """Write the index to a file."""
        faiss.write_index(self._index, str(path))

    @classmethod
    def read(cls, path: Path, factory: str) -> "VectorIndex":
        """Open the index in a file; its vectors stay on the disk until they are used, where FAISS can do so.

        Args:
            path: path of the file.
            factory: description with which the index was made.

        Raises:
            InputError: if the file can't be read.
        """
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise InputError(f"{path}: no index that can be read; build it again") from error
        opened = cls.__new__(cls)
        opened.factory, opened.parameters, opened._index, opened._is_mapped = factory, "", index, True
        return opened

    def make_changeable(self) -> None:
        """Read an index that stays on the disk into memory, so that it can be changed."""
        if self._is_mapped:
            self._index, self._is_mapped = faiss.deserialize_index(faiss.serialize_index(self._index)), False


def _contiguous(vectors: Floats) -> Floats:
    return np.ascontiguousarray(vectors, np.float32)
