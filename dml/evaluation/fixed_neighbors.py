"""Recall among a few items for each query, such as its nearest neighbors by another network."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.ranking.items import Labels, Positives
from dml.metrics.binary import positive_ranks, recall_at_k
from dml.retrieval.rows import Embeddings
from dml.runtime.errors import InputError
from dml.runtime.filesystem.checksums import DamageError, check_zip
from dml.runtime.filesystem.files import replacing

BLOCK_SIZE = 2048
"""The number of queries that are ranked together."""


class FixedNeighbors(NamedTuple):
    """The nearest images of each test image by a network before its training.

    Args:
        rows: (N,) int64, the rows of the tested images.
        neighbors: (N, K) int64, indices among these rows of the nearest images of each.
    """

    rows: npt.NDArray[np.int64]
    neighbors: npt.NDArray[np.int64]

    def write(self, path: Path) -> None:
        """Write the neighbors to a file."""
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, rows=self.rows, neighbors=self.neighbors)

    @classmethod
    def read(cls, path: Path) -> "FixedNeighbors":
        """Read what `write` wrote.

        Raises:
            InputError: if the file is damaged.
        """
        try:
            check_zip(path)
            with np.load(path) as arrays:
                return cls(arrays["rows"], arrays["neighbors"])
        except DamageError as error:
            damage = str(error)
        except (KeyError, ValueError) as error:
            damage = f"no rows and neighbors in it: {error}"
        raise InputError(f"{path}: damaged ({damage}); evaluation.fixed_neighbors=null tests without it")


def recall_among(
    embeddings: Embeddings | UnitEmbeddings,
    labels: Labels,
    neighbors: Tensor,
    recall_at: Sequence[int] = (1, 2, 4, 8),
) -> dict[str, float]:
    """Compute recall@k of rankings that hold only a few items, such as the query's neighbors by another network.

    In the LNS thesis (Table 3.3) this shows whether a network improves the order within a neighborhood, or finds items
    outside of it.

    Args:
        embeddings: embeddings (N, D); items are ranked by cosine similarity, ties by index.
        labels: labels (N,) or (N, L).
        neighbors: (N, K) int64, the items in the ranking of each query, without the query.
        recall_at: every k at which recall@k is computed; a k above K counts all K items.

    Returns:
        {level0/recall@1: fraction}, the mean over the queries with a positive among all N items; a query without a
        positive among its K items counts as 0.

    Raises:
        InputError: if the lengths differ, or no query has a positive.
    """
    rows = UnitEmbeddings.normalize(embeddings).rows.cpu()
    columns = torch.as_tensor(np.asarray(labels)).reshape(len(labels), -1)
    if not len(rows) == len(columns) == len(neighbors):
        raise InputError(f"{len(rows)} embeddings, {len(columns)} labels and neighbors of {len(neighbors)} items")
    items = torch.cat([_nearest_first(rows, part) for part in _parts(neighbors)])
    positives = Positives(columns.numpy(), None)
    recalls: dict[str, float] = {}
    for level, column in enumerate(columns.T):
        ranks = positive_ranks(column[items] == column[:, None])
        counted = torch.from_numpy(positives.count(level) > 0)
        if not counted.any():
            raise InputError(f"level{level}: none of the {len(rows)} queries has a positive")
        recalls |= {f"level{level}/recall@{k}": float(recall_at_k(ranks, k)[counted].mean()) for k in recall_at}
    return recalls


def _parts(neighbors: Tensor) -> list[tuple[int, Tensor]]:
    return [(start, neighbors[start : start + BLOCK_SIZE]) for start in range(0, len(neighbors), BLOCK_SIZE)]


def _nearest_first(rows: Tensor, part: tuple[int, Tensor]) -> Tensor:
    """Sort the neighbors (B, K) of the queries from `start` on by falling cosine similarity."""
    start, items = part
    items = items.sort(dim=1).values
    cosines = torch.einsum("bd,bkd->bk", rows[start : start + len(items)], rows[items])
    return items.gather(1, cosines.argsort(dim=1, descending=True, stable=True))
