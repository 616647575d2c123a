"""The distances between queries and a gallery, a block of queries at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.retrieval.gallery import Gallery
from dml.retrieval.top import SORT_FACTOR, k_nearest

MEMORY = 2**27
"""Bytes of distances that a step holds at a time."""


@dataclass(frozen=True)
class Comparison:
    """Queries and the gallery that they search: what a step of a re-ranking changes.

    >>> comparison = Comparison(torch.eye(2), torch.eye(2), np.empty((2, 0), dtype=np.int64), False)
    >>> comparison.distances(range(2)).tolist()
    [[-1.0, 0.0], [0.0, -1.0]]

    Args:
        queries: (Q, D) float32 embeddings of unit length.
        gallery: (G, D) float32 embeddings of unit length, on the device of the queries.
        excluded: (Q, M) gallery items that each query excludes, padded with -1; its ranking has none of them.
        is_own_gallery: whether the gallery is the queries, each of which excludes itself.
        is_changed: whether a step has changed the queries or the gallery.
    """

    queries: Tensor
    gallery: Tensor
    excluded: npt.NDArray[np.int64]
    is_own_gallery: bool
    is_changed: bool = False

    @cached_property
    def _items(self) -> Gallery:
        return Gallery(self.gallery)

    def distances(self, rows: range, out: Tensor | None = None) -> Tensor:
        """Return the distances of some queries to all items, infinite for items that the query excludes.

        The distances are from -1 to 1. For the first steps they are negative cosine similarities.

        Args:
            rows: range of the queries.
            out: (B, G) memory for the result; None allocates it.

        Returns:
            (B, G) float32; smaller is nearer.
        """
        queries = self.queries[rows.start : rows.stop]
        excluded = torch.from_numpy(self.excluded[rows.start : rows.stop]).to(queries.device)
        return self._items.distances(queries, excluded, out)

    def gallery_vectors(self, queries: Tensor, items: Tensor) -> Tensor:
        """Return the vectors (P, D) that the gallery items (P,) have for the queries (P,), both given by index."""
        del queries  # an unchanged gallery is the same for all queries
        return self.gallery[items]

    def split(self) -> Iterator[range]:
        """Yield ranges of queries whose distances fit `MEMORY`."""
        size = max(MEMORY // (4 * len(self.gallery)), 1)
        for start in range(0, len(self.queries), size):
            yield range(start, min(start + size, len(self.queries)))

    def nearest(self, distances: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return distances (B, k) and indices (B, k) of the nearest items by distances (B, G), ties by index."""
        return k_nearest(distances, k, rows_at_once=max(len(distances) // SORT_FACTOR, 1))

    @property
    def num_ranked(self) -> int:
        """The number of items that each query has in its ranking, at least."""
        return len(self.gallery) - int(self.excluded.shape[1])


Reranker = Callable[[Comparison], Comparison]
"""A step of a re-ranking, or several."""


def find_neighbors(comparison: Comparison, k: int) -> Tensor:
    """Find the k nearest items of each query, on the device of the embeddings -> (Q, k) indices, ties by index."""
    blocks = [comparison.nearest(comparison.distances(rows), k)[1] for rows in comparison.split()]
    return torch.cat(blocks)


def compare_among(gallery: Tensor) -> Comparison:
    """Return the comparison of a gallery (G, D) with itself, in which each item excludes itself."""
    return Comparison(gallery, gallery, np.arange(len(gallery), dtype=np.int64)[:, None], is_own_gallery=True)
