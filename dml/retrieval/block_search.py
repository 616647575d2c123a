"""Exact nearest neighbours from blocks of all distances, for embeddings on a CUDA device."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.errors import InputError
from dml.retrieval.gallery import Gallery
from dml.retrieval.top import SORT_FACTOR, k_nearest

MEMORY = 2**28
"""Bytes of distances that are held at a time."""


class BlockSearch:
    """Finds nearest neighbours with torch, on any device.

    >>> scores, indices = BlockSearch(torch.eye(3), k=1)(torch.tensor([[0.0, 2.0, 1.0]]))
    >>> scores.tolist(), indices.tolist()
    ([[2.0]], [[1]])

    Args:
        rows: (G, D) float32 embeddings of the gallery.
        k: number of neighbours of each query; it is reduced if a query has fewer items.
        excluded: (Q, M) items that each query excludes, such as the query itself; rows of queries that exclude fewer
            are filled with -1. None excludes nothing.
    """

    def __init__(self, rows: Tensor, k: int, excluded: npt.NDArray[np.int64] | None = None) -> None:
        self.gallery, self.excluded = Gallery(rows), excluded
        self.k = min(k, len(rows) - (0 if excluded is None else excluded.shape[1]))
        self._block_size = max(1, MEMORY // (4 * len(rows)))

    def __call__(self, queries: Tensor, first: int = 0) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Search the neighbours of some of the queries.

        Args:
            queries: (B, D) float32 embeddings on the gallery's device.
            first: index of the first of them among all queries, for ``excluded``.

        Returns:
            Scores (B, k), which are dot products, and indices (B, k), best first.

        Raises:
            InputError: if a dot product overflows float32.
        """
        starts = range(0, len(queries), self._block_size)
        parts = [self._search_block(queries[start : start + self._block_size], first + start) for start in starts]
        distances, items = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
        if not np.isfinite(distances).all():
            raise InputError("the dot products overflow float32: scale the embeddings down, or to unit length")
        return 0 - distances, items  # unlike -distances, this never gives -0

    def _search_block(self, queries: Tensor, first: int) -> tuple[Tensor, Tensor]:
        excluded = None if self.excluded is None else self.excluded[first : first + len(queries)]
        excluded_items = None if excluded is None else torch.from_numpy(excluded).to(queries.device)
        distances = self.gallery.distances(queries, excluded_items)
        return k_nearest(distances, self.k, rows_at_once=max(1, len(queries) // SORT_FACTOR))
