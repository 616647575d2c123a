from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.errors import InputError
from dml.retrieval.block_search import BlockSearch
from dml.retrieval.gallery import Gallery
from dml.retrieval.ranks import nearest
from dml.retrieval.rows import Embeddings, float32_rows, is_on_cuda

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

AT_ONCE = 256  # queries that are ranked without FAISS at a time


def nearest_neighbors(
    query: Embeddings, k: int, gallery: Embeddings | None = None, *, batch: int = 16_384
) -> tuple[Tensor, Tensor]:
    """(Q, D), (G, D) -> the k largest dot products of each query (Q, k') float32, and whose (Q, k') int64.

    Exact search in float32, best first, k' = min(k, G); for cosines give rows of unit length. Without a
    gallery the queries are their own, each query is left out of its own list by its index, and Q - 1 stands
    for G.

    A CUDA device searches embeddings that are on it, FAISS on CPU all others; the result is on CPU.

    Equal scores stand in the order of the gallery, and equal embeddings have equal scores. Float32 decides what
    else is equal: scores closer than its rounding may swap. `batch` queries are searched at a time: beside inputs
    and result the memory is O(batch k).

    Raises InputError for embeddings that are not finite, widths that differ, k < 1, or a lone item.
    """
    queries = float32_rows(query, "query")
    uses_cuda = is_on_cuda(queries)
    queries = queries if uses_cuda else queries.cpu()
    others = queries if gallery is None else float32_rows(gallery, "gallery").to(queries.device)
    if queries.shape[1] != others.shape[1]:
        raise InputError(f"query embeddings have {queries.shape[1]} dimensions, gallery's {others.shape[1]}")
    if k < 1:
        raise InputError(f"k = {k}: at least 1 neighbour must be asked for")
    if gallery is None and len(queries) < 2:
        raise InputError("query: 1 embedding and no gallery, at least 2 are needed")
    own = np.arange(len(queries), dtype=np.int64)[:, None]
    search = (BlockSearch if uses_cuda else Search)(others, k, own if gallery is None else None)
    scores = np.empty((len(queries), search.k), dtype=np.float32)
    indices = np.empty((len(queries), search.k), dtype=np.int64)
    for start in range(0, len(queries), batch):
        rows = slice(start, start + batch)
        scores[rows], indices[rows] = search(queries[rows], start)
    return torch.from_numpy(scores), torch.from_numpy(indices)


class Search:
    """Finds nearest neighbours with FAISS, and by itself where FAISS's choice among equals could show.

    Args:
        rows: (G, D) float32, on CPU.
        k: the neighbours asked for; there are as many as there are items.
        excluded: (Q, M) the items that each of all queries excludes, such as itself; -1 fills the rows of queries
            that exclude fewer. None excludes nothing.
    """

    def __init__(self, rows: Tensor, k: int, excluded: Integers | None = None) -> None:
        self.gallery = Gallery(rows)
        self.excluded = excluded
        most = 0 if excluded is None else excluded.shape[1]
        self.k = min(k, len(rows) - most)
        self._repeated = self.gallery.repeated
        self._asked = min(self.k + most + 1, len(rows))  # one more shows whether there is a tie over the end

    def __call__(self, queries: Tensor, first: int = 0) -> tuple[Floats, Integers]:
        """(B, D), the first one's place among all queries -> scores (B, k), indices (B, k)."""
        knn: Any = faiss.knn  # which needs no copy of the gallery, as an index does
        found = knn(queries.numpy(), self.gallery.rows.numpy(), k=self._asked, metric=faiss.METRIC_INNER_PRODUCT)
        scores, indices = _in_order(*found)
        unsure = self._repeated[indices].any(axis=1)
        if self.excluded is not None:
            scores, indices = _without(scores, indices, self.excluded[first : first + len(queries)])
        if scores.shape[1] > self.k:
            unsure |= scores[:, self.k - 1] == scores[:, self.k]
        scores, indices = scores[:, : self.k], indices[:, : self.k]
        rows = np.flatnonzero(unsure)
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            scores[part], indices[part] = self._ranked(queries[part], first + part)
        return scores, indices

    def _ranked(self, queries: Tensor, places: Integers) -> tuple[Floats, Integers]:
        excluded = None if self.excluded is None else torch.from_numpy(self.excluded[places])
        distances = self.gallery.distances(queries, excluded).numpy()
        indices = np.stack([nearest(row, self.k) for row in distances])
        return 0 - np.take_along_axis(distances, indices, axis=1), indices  # 0 - 0 is 0, where -0 is another number


def _in_order(scores: Floats, indices: Integers) -> tuple[Floats, Integers]:
    """FAISS's lists (Q, k), by falling score, with equal scores by rising index."""
    if (indices < 0).any():  # FAISS's mark for an empty place: no score there was a number
        raise InputError("the dot products overflow float32: scale the embeddings down, or to unit length")
    tied = (scores[:, 1:] == scores[:, :-1]) & (indices[:, 1:] < indices[:, :-1])
    rows = np.flatnonzero(tied.any(axis=1))
    order = np.lexsort((indices[rows], -scores[rows]))
    indices[rows] = np.take_along_axis(indices[rows], order, axis=1)  # their scores are in order
    return scores, indices


def _without(scores: Floats, indices: Integers, excluded: Integers) -> tuple[Floats, Integers]:
    """(Q, k + M) -> (Q, k): each row loses the indices that it excludes, and places at its end if they are fewer.

    A query with as many others as near as itself (duplicates) is not in its list, which the best others lead.

    Args:
        scores: of the indices.
        indices: (Q, k + M), best first.
        excluded: (Q, M), padded with -1.
    """
    gone = (indices[:, :, None] == excluded[:, None]).any(axis=2)
    kept = np.argsort(gone, axis=1, kind="stable")[:, : indices.shape[1] - excluded.shape[1]]
    return np.take_along_axis(scores, kept, axis=1), np.take_along_axis(indices, kept, axis=1)
