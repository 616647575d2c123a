"""Nearest neighbours by all distances of some queries at a time, for embeddings on a CUDA device."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.errors import InputError
from dml.retrieval.gallery import Gallery
from dml.retrieval.top import k_nearest

MEMORY = 2**28  # bytes of distances at a time
SORTED = 16  # times the memory of distances that sorting them takes


class BlockSearch:
    """Finds nearest neighbours with torch, on any device.

    Args:
        rows: (G, D) float32.
        k: the neighbours asked for; there are as many as there are items.
        excluded: (Q, M) the items that each of all queries excludes, such as itself; -1 fills the rows of queries
            that exclude fewer. None excludes nothing.
    """

    def __init__(self, rows: Tensor, k: int, excluded: npt.NDArray[np.int64] | None = None) -> None:
        self.gallery, self.excluded = Gallery(rows), excluded
        self.k = min(k, len(rows) - (0 if excluded is None else excluded.shape[1]))
        self._at_once = max(1, MEMORY // (4 * len(rows)))

    def __call__(self, queries: Tensor, first: int = 0) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """(B, D), the first one's place among all queries -> scores (B, k), indices (B, k).

        Raises InputError for dot products that overflow.
        """
        starts = range(0, len(queries), self._at_once)
        parts = [self._search(queries[start : start + self._at_once], first + start) for start in starts]
        distances, items = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
        if not np.isfinite(distances).all():
            raise InputError("the dot products overflow float32: scale the embeddings down, or to unit length")
        return 0 - distances, items  # 0 - 0 is 0, where -0 is another number

    def _search(self, queries: Tensor, first: int) -> tuple[Tensor, Tensor]:
        excluded = None if self.excluded is None else self.excluded[first : first + len(queries)]
        on_device = None if excluded is None else torch.from_numpy(excluded).to(queries.device)
        distances = self.gallery.distances(queries, on_device)
        return k_nearest(distances, self.k, rows_at_once=max(1, len(queries) // SORTED))
