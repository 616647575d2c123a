"""Vectors that FAISS holds in fewer bytes, and the search among them."""

from enum import StrEnum
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from dml.retrieval.search import check_products, drop_excluded, search_with_ties

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

QUERIES_PER_BLOCK = 1024
"""Number of queries that are searched at a time."""

NUMBERS_PER_CODE = 4
"""The largest number of numbers for which a product quantizer stores one code."""

LARGEST_CODE = 8
"""Bits of a code of a product quantizer; fewer if there are fewer training vectors than 2^8 codes."""


class Storage(StrEnum):
    """The ways to store a vector."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"
    """A byte for each number, between the smallest and the largest value of the training vectors."""
    BINARY = "binary"
    """The sign of each number; vectors are compared by the number of signs that differ."""
    PRODUCT = "pq"
    """A byte for every four numbers: the nearest of 256 centroids of the training vectors (product quantizer)."""
    RABITQ1, RABITQ2, RABITQ4, RABITQ8 = "rabitq1", "rabitq2", "rabitq4", "rabitq8"
    """So many bits for each number of the rotated vectors, and 8 to 20 bytes more (RaBitQ, arXiv:2405.12497)."""


HAS_RABITQ = hasattr(faiss, "IndexRaBitQ")
"""Whether this version of FAISS has RaBitQ."""


class CompressedVectors:
    """Vectors in one of the forms of `Storage`, searched by inner product, or by Hamming distance if they are binary.

    Queries aren't compressed, except in the binary form.

    >>> vectors = CompressedVectors(Storage.BINARY, np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32))
    >>> vectors.search(np.array([[0.1, 0.9]], np.float32), k=2).tolist(), vectors.bytes_per_vector
    ([[0, 1]], 1)

    Args:
        storage: form of the vectors.
        train: vectors (M, D), M >= 1, which a quantizer is trained on.
        vectors: vectors (N, D) to search among, of unit length.
    """

    def __init__(self, storage: Storage, train: Floats, vectors: Floats) -> None:
        self.is_binary = storage is Storage.BINARY
        self._vectors = _contiguous(vectors)
        self._index = _make_index(storage, _contiguous(train))
        self._index.add(self._encode(self._vectors))

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def bytes_per_vector(self) -> int:
        """The bytes in which a vector is stored."""
        return int(self._index.code_size if self.is_binary else self._index.sa_code_size())

    def search(self, queries: Floats, k: int, excluded: Integers | None = None) -> Integers:
        """Find the k nearest vectors of each query (Q, D) -> (Q, k), nearest first; ties are in the vectors' order.

        ``excluded`` (Q, M) vectors are left out of a query's neighbors, padded with -1; k is at most N - M.
        """
        neighbors = np.empty((len(queries), k), np.int64)
        for start in range(0, len(queries), QUERIES_PER_BLOCK):
            rows = slice(start, start + QUERIES_PER_BLOCK)
            if excluded is None:
                neighbors[rows] = self._search_block(queries[rows], k)[1]
            else:
                neighbors[rows] = drop_excluded(
                    *self._search_block(queries[rows], k + excluded.shape[1]), excluded[rows]
                )[1]
        return neighbors

    def search_quickly(self, queries: Floats, k: int) -> Integers:
        """Find the k nearest vectors of each query as FAISS does, in any order of ties. (Q, D) -> (Q, k)"""
        indices: Integers = self._index.search(self._encode(_contiguous(queries)), k)[1]
        return indices

    def rescore(self, queries: Floats, neighbors: Integers, candidates: int) -> Integers:
        """Sort the first ``candidates`` of the neighbors (Q, K) again by the inner products of the float32 vectors.

        This is what ``faiss.IndexRefineFlat`` does, for binary vectors too, and for each number of neighbors the same.

        Ties are in the vectors' order; the other neighbors stay where they are.
        """
        result = neighbors.copy()
        for start in range(0, len(queries), QUERIES_PER_BLOCK):
            rows = slice(start, start + QUERIES_PER_BLOCK)
            block, items = _contiguous(queries[rows]), np.ascontiguousarray(neighbors[rows, :candidates])
            products = np.empty(items.shape, np.float32)
            library: Any = faiss  # its type stubs lack the function
            pointers = [library.swig_ptr(array) for array in (products, block, self._vectors, items)]
            library.fvec_inner_products_by_idx(*pointers, block.shape[1], *items.shape)
            order = np.lexsort((items, -products))
            result[rows, :candidates] = np.take_along_axis(items, order, axis=1)
        return result

    def _search_block(self, queries: Floats, k: int) -> tuple[Floats, Integers]:
        """Find the k nearest vectors of each query, ties in the vectors' order -> scores (Q, k), indices (Q, k)."""
        codes = self._encode(_contiguous(queries))
        if self.is_binary:  # FAISS counts Hamming distances in the order of the vectors, which keeps the order of ties
            distances, indices = self._index.search(codes, k)
            return -distances.astype(np.float32), indices
        return search_with_ties(self._search_products, codes, k, len(self), most_ties=len(self))

    def _search_products(self, codes: Any, k: int) -> tuple[Floats, Integers]:
        scores, indices = self._index.search(codes, k)
        check_products(scores, indices)
        return scores, indices

    def _encode(self, vectors: Floats) -> Any:
        """Return vectors as FAISS's index takes them: as they are, or their signs as bits."""
        return np.packbits(vectors > 0, axis=1) if self.is_binary else vectors


def count_threads() -> int:
    """Return the number of threads that FAISS searches with."""
    threads: int = faiss.omp_get_max_threads()
    return threads


def _make_index(storage: Storage, train: Floats) -> Any:
    """Make an index without vectors, and train its quantizer; FAISS draws by a fixed seed."""
    size = train.shape[1]
    if storage is Storage.BINARY:
        binary: Any = faiss.IndexBinaryFlat(8 * -(-size // 8))
        binary.use_heap = False
        return binary
    index: Any
    if storage is Storage.FLOAT32:
        return faiss.IndexFlatIP(size)
    if storage is Storage.PRODUCT:
        numbers = next(count for count in range(NUMBERS_PER_CODE, 0, -1) if size % count == 0)
        bits = min(LARGEST_CODE, max(1, len(train).bit_length() - 1))
        index = faiss.IndexPQ(size, size // numbers, bits, faiss.METRIC_INNER_PRODUCT)
        index.pq.cp.min_points_per_centroid = 1  # otherwise FAISS warns of fewer than 39
    elif storage.startswith("rabitq"):
        index = faiss.index_factory(size, f"RR{size},RaBitQ{storage[-1]}", faiss.METRIC_INNER_PRODUCT)
    else:
        kinds = {Storage.FLOAT16: faiss.ScalarQuantizer.QT_fp16, Storage.INT8: faiss.ScalarQuantizer.QT_8bit}
        index = faiss.IndexScalarQuantizer(size, kinds[storage], faiss.METRIC_INNER_PRODUCT)
    index.train(train)
    return index


def _contiguous(vectors: Floats) -> Floats:
    return np.ascontiguousarray(vectors, np.float32)
