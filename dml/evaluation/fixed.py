"""Retrieval among neighbours that were fixed before."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dml.evaluation.items import Labels
from dml.evaluation.positives import Positives
from dml.metrics.binary import positive_ranks, recall_at_k
from dml.ops.errors import InputError
from dml.retrieval.rows import Embeddings, unit_rows

AT_ONCE = 2048  # queries


def recall_among(
    embeddings: Embeddings, labels: Labels, neighbors: Tensor, recall_at: Sequence[int] = (1, 2, 4, 8)
) -> dict[str, float]:
    """Recall@k of rankings that hold a few items of each query alone, such as its neighbours by another network.

    So the LNS thesis tells apart (Table 3.3) what moves within a neighbourhood from what comes to it from far away.

    Args:
        embeddings: (N, D); items are ranked by their cosine, ties by index.
        labels: (N,) or (N, L).
        neighbors: (N, K) int64, the items that each query may find; not itself.
        recall_at: the k; where it is above K, all of them count.

    Returns:
        {level0/recall@1: fraction}, over the queries that have a positive anywhere: without one among its K a query
        scores 0.

    Raises:
        InputError: if the lengths differ, or no query has a positive.
    """
    rows = unit_rows(embeddings, "embeddings").cpu()
    columns = torch.as_tensor(np.asarray(labels)).reshape(len(labels), -1)
    if not len(rows) == len(columns) == len(neighbors):
        raise InputError(f"{len(rows)} embeddings, {len(columns)} labels and neighbours of {len(neighbors)} items")
    items = torch.cat([_nearest_first(rows, part) for part in _parts(neighbors)])
    positives = Positives(columns.numpy(), None)
    found: dict[str, float] = {}
    for level, column in enumerate(columns.T):
        ranks = positive_ranks(column[items] == column[:, None])
        counted = torch.from_numpy(positives.number(level) > 0)
        if not counted.any():
            raise InputError(f"level{level}: none of the {len(rows)} queries has a positive")
        found |= {f"level{level}/recall@{k}": float(recall_at_k(ranks, k)[counted].mean()) for k in recall_at}
    return found


def _parts(neighbors: Tensor) -> list[tuple[int, Tensor]]:
    return [(start, neighbors[start : start + AT_ONCE]) for start in range(0, len(neighbors), AT_ONCE)]


def _nearest_first(rows: Tensor, part: tuple[int, Tensor]) -> Tensor:
    """The neighbours (B, K) of the queries from `start` on by falling cosine."""
    start, items = part
    items = items.sort(dim=1).values
    cosines = torch.einsum("bd,bkd->bk", rows[start : start + len(items)], rows[items])
    return items.gather(1, cosines.argsort(dim=1, descending=True, stable=True))
