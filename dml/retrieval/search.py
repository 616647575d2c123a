"""Exact nearest neighbors: by FAISS, or by torch for embeddings on a CUDA device. Ties are in the order of the ids."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.precision import SharedSetting
from dml.retrieval.gallery import SORT_FACTOR, Gallery, k_nearest, nearest
from dml.retrieval.rows import Embeddings, float32_rows
from dml.runtime.errors import InputError, check_whole

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

FAISS_VERSION: str = faiss.__version__
"""What the library says: its package has several names, one for each build, and finding which takes half a second."""

LARGEST_K = 2047
"""The largest number of neighbors, and of searched cells, that every version of FAISS accepts on a GPU."""

MEMORY = 2**28
"""Bytes of distances that are held at a time."""

BLOCK_SIZE = 256
"""Number of queries that are ranked without FAISS at a time."""

FEWEST = 4
"""Number of queries from which on a matrix product takes less time than comparing one query after the other."""

MOST_TIES = 1000
"""The default of the largest number of vectors beyond the k-th that are searched for equal scores."""

_settings: Any = faiss.cvar
_threshold: SharedSetting[int] = SharedSetting(
    lambda: int(_settings.distance_compute_blas_threshold),
    partial(setattr, _settings, "distance_compute_blas_threshold"),
    choose=min,
)
"""FAISS's threshold, one for the whole process: the lowest that the searches under way need."""


def multiplying_few_queries(dimension: int) -> AbstractContextManager[None]:
    """Let FAISS compare `FEWEST` queries (Q, D) or more with all vectors by a matrix product, while the body runs.

    FAISS 1.15 does so from 128,000 components on, such as 1,000 queries with 128 dimensions. Fewer queries took three
    to eight times as long. Threads may run it at the same time.
    """
    return _threshold.hold(FEWEST * dimension)


def copy_to_gpus(index: Any) -> Any:
    """Return a copy of an index on all GPUs of FAISS; None without one that has the memory and searches this kind."""
    lists: Any = faiss.try_extract_index_ivf(index)
    if not faiss.get_num_gpus() or (lists is not None and lists.nprobe > LARGEST_K):
        return None
    try:
        return faiss.index_cpu_to_all_gpus(index)
    except RuntimeError:  # FAISS says by it that it can't copy the index
        return None


def sort_ties(scores: Floats, ids: Integers) -> tuple[Floats, Integers]:
    """Sort neighbors (Q, k) with equal scores by their ids, in place; FAISS has sorted them by descending score.

    >>> sort_ties(np.float32([[0.9, 0.5, 0.5]]), np.array([[4, 7, 2]]))[1].tolist()
    [[4, 2, 7]]
    """
    is_tied = (scores[:, 1:] == scores[:, :-1]) & (ids[:, 1:] < ids[:, :-1])
    rows = np.flatnonzero(is_tied.any(axis=1))
    order = np.lexsort((ids[rows], -scores[rows]))
    ids[rows] = np.take_along_axis(ids[rows], order, axis=1)  # the scores are sorted already
    return scores, ids


def search_with_ties(
    search: Callable[[npt.NDArray[Any], int], tuple[Floats, Integers]],
    queries: npt.NDArray[Any],
    k: int,
    count: int,
) -> tuple[Floats, Integers]:
    """Find the k best neighbors, of which those with equal scores have the smallest ids and are sorted by them.

    ``search`` gives scores and ids (Q, k) of queries (Q, D), exactly, but any of the vectors that share the k-th score.
    It is repeated with a larger k for the queries whose next neighbor has that score too. If more than `MOST_TIES` of
    the ``count`` vectors share it, they may be any of these.
    """
    largest_depth = min(count, k + MOST_TIES)
    scores, ids = sort_ties(*search(queries, min(k + 1, count)))
    tied = np.flatnonzero(scores[:, k - 1] == scores[:, -1])
    scores, ids = scores[:, :k], ids[:, :k]
    depth = k + 1
    while len(tied) and depth < largest_depth:
        depth = min(count, 2 * depth)
        deeper_scores, deeper_ids = sort_ties(*search(queries[tied], depth))
        scores[tied], ids[tied] = deeper_scores[:, :k], deeper_ids[:, :k]
        tied = tied[deeper_scores[:, k - 1] == deeper_scores[:, -1]]
    return scores, ids


def nearest_neighbors(
    query: Embeddings, k: int, gallery: Embeddings | None = None, *, batch: int = 16_384
) -> tuple[Tensor, Tensor]:
    """Find each query's k nearest neighbors by dot product, exactly -> scores, indices (Q, k') on CPU, best first.

    For cosines, give L2-normalized embeddings. FAISS searches, on GPUs if the installed FAISS has some; embeddings on a
    CUDA device are searched there by torch. Neighbors with equal scores are in the order of the gallery, and equal
    embeddings always have equal scores. Scores that differ by less than the rounding of float32 may be swapped.

    >>> scores, indices = nearest_neighbors(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), k=1)
    >>> indices.tolist()
    [[1], [0], [1]]

    Args:
        gallery: (G, D) embeddings; None searches among the queries, where each query is excluded from its neighbors. k'
            is min(k, G), or min(k, Q - 1) without a gallery.
        batch: number of queries that are searched at a time; besides inputs and result the memory is O(batch k).
    """
    queries = float32_rows(query, "query")
    items = queries if gallery is None else float32_rows(gallery, "gallery").to(queries.device)
    if queries.shape[1] != items.shape[1]:
        raise InputError(
            f"query embeddings have {queries.shape[1]} dimensions, the gallery's {items.shape[1]}; they must be equal"
        )
    check_whole("k", k, least=1)
    query_indices = np.arange(len(queries), dtype=np.int64)[:, None]
    search = (BlockSearch if queries.is_cuda else Search)(items, int(k), query_indices if gallery is None else None)
    scores = torch.empty((len(queries), search.k))
    indices = torch.empty((len(queries), search.k), dtype=torch.int64)
    for start in range(0, len(queries), batch):
        rows = slice(start, start + batch)
        scores[rows], indices[rows] = search(queries[rows], start)
    return scores, indices


class BlockSearch:
    """Finds nearest neighbors among rows (G, D) float32 with torch, on any device.

    >>> scores, indices = BlockSearch(torch.eye(3), k=1)(torch.tensor([[0.0, 2.0, 1.0]]))
    >>> scores.tolist(), indices.tolist()
    ([[2.0]], [[1]])

    Args:
        k: number of neighbors of each query; it is reduced if a query has fewer items.
        excluded: (Q, M) items that each query excludes, such as the query itself, padded with -1.
    """

    def __init__(self, rows: Tensor, k: int, excluded: Integers | None = None) -> None:
        self.gallery, self.excluded = Gallery(rows), excluded
        self.max_excluded = 0 if excluded is None else excluded.shape[1]
        self.k = min(k, len(rows) - self.max_excluded)

    def __call__(self, queries: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """Search neighbors of queries (B, D), the first of which is number ``first`` -> scores, indices (B, k)."""
        size = max(1, MEMORY // (4 * len(self.gallery)))
        blocks = []
        for start in range(0, len(queries), size):
            block = queries[start : start + size]
            distances = self._compute_distances(block, np.arange(first + start, first + start + len(block)))
            blocks.append(k_nearest(distances, self.k, rows_at_once=max(1, len(block) // SORT_FACTOR)))
        nearest_distances, indices = (torch.cat(column) for column in zip(*blocks, strict=True))
        check_products(nearest_distances, indices)
        return 0 - nearest_distances, indices  # unlike -distances, this never gives -0

    def _compute_distances(self, queries: Tensor, query_indices: Integers) -> Tensor:
        """Compute the distances of queries (B, D), with their indices (B,), to all items. -> (B, G)"""
        excluded = None if self.excluded is None else torch.from_numpy(self.excluded[query_indices]).to(queries.device)
        return self.gallery.distances(queries, excluded)


class Search(BlockSearch):
    """Finds nearest neighbors of embeddings on CPU with FAISS, as `BlockSearch` does.

    FAISS chooses arbitrarily among items with equal scores. Queries for which that could change the result are ranked
    without FAISS, so that items with equal scores are in the order of the gallery.
    """

    def __init__(self, rows: Tensor, k: int, excluded: Integers | None = None) -> None:
        super().__init__(rows, k, excluded)
        self._repeated = self.gallery.repeated
        # One neighbor more tells whether the last one of the result is tied with the next.
        self._faiss_k = min(self.k + self.max_excluded + 1, len(rows))
        self._gpu_copy: Any = None
        if faiss.get_num_gpus() and self._faiss_k <= LARGEST_K:
            index: Any = faiss.IndexFlatIP(rows.shape[1])
            index.add(rows.numpy())
            self._gpu_copy = copy_to_gpus(index)

    def __call__(self, queries: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """Search the neighbors of some of the queries, see `BlockSearch`."""
        knn: Any = faiss.knn  # unlike an index, knn doesn't copy the gallery
        arrays = queries.numpy(), self.gallery.rows.numpy()
        with multiplying_few_queries(queries.shape[1]):
            if self._gpu_copy is None:
                scores, indices = knn(*arrays, k=self._faiss_k, metric=faiss.METRIC_INNER_PRODUCT)
            else:
                scores, indices = self._gpu_copy.search(arrays[0], self._faiss_k)
        check_products(scores, indices)
        scores, indices = sort_ties(scores, indices)
        is_unsure = self._repeated[indices].any(axis=1)
        if self.excluded is not None:
            scores, indices = drop_excluded(scores, indices, self.excluded[first : first + len(queries)])
        if scores.shape[1] > self.k:
            is_unsure |= scores[:, self.k - 1] == scores[:, self.k]
        scores, indices = scores[:, : self.k], indices[:, : self.k]
        rows = np.flatnonzero(is_unsure)
        for start in range(0, len(rows), BLOCK_SIZE):
            part = rows[start : start + BLOCK_SIZE]
            distances = self._compute_distances(queries[part], first + part).numpy()
            indices[part] = np.stack([nearest(row, self.k) for row in distances])
            scores[part] = 0 - np.take_along_axis(distances, indices[part], axis=1)  # unlike -distances, never -0
        return torch.from_numpy(scores), torch.from_numpy(indices)


def check_products(scores: Any, indices: Any) -> None:
    """Make sure that the neighbors (Q, k) of a search have scores that are numbers, in arrays or tensors."""
    if (indices < 0).any() or not (abs(scores) < np.inf).all():  # FAISS gives -1 where a score isn't a number
        raise InputError("the dot products overflow float32: scale the embeddings down, or to unit length")


def drop_excluded(scores: Floats, indices: Integers, excluded: Integers) -> tuple[Floats, Integers]:
    """Drop M neighbors of each query: the excluded ones, and then the last ones. (Q, k + M), (Q, M) -> (Q, k)

    An excluded item isn't always among the neighbors, because other items can have the same score. ``excluded`` is
    filled with -1.
    """
    is_excluded = np.zeros(indices.shape, dtype=bool)
    for column in excluded.T:  # one query may have many, and the others none
        rows = np.flatnonzero(column >= 0)
        is_excluded[rows] |= indices[rows] == column[rows, None]
    columns = np.argsort(is_excluded, axis=1, kind="stable")[:, : indices.shape[1] - excluded.shape[1]]
    return np.take_along_axis(scores, columns, axis=1), np.take_along_axis(indices, columns, axis=1)
