"""Where the positives of some queries stand in their rankings, from the distances to all gallery items."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.evaluation.positives import Positives
from dml.metrics.binary import positive_ranks
from dml.retrieval.ranks import RowRanker, nearest

Ranks = npt.NDArray[np.int64]


class Ranked(NamedTuple):
    """The rankings of Q queries, as far as the metrics look at them: ranks (Q, P) float64, rising, padded with inf."""

    at: tuple[Tensor, ...]
    """For each column of the labels, those of the items with the query's label."""
    sharing: tuple[Tensor, ...]
    """For each number of levels from 1 to L, those of the items that share just as many with the query."""
    nearest: Tensor
    """(Q, k) int64: the nearest items themselves."""


def rank_rows(distances: Tensor, positives: Positives, first: int, k: int) -> Ranked:
    """The rankings of the queries from `first` on, on CPU. (Q, G) -> `Ranked`; ties in the gallery's order."""
    ranker, marks = RowRanker(distances.shape[1]), positives.marks()
    at: list[list[Ranks]] = [[] for _ in range(positives.depth)]
    sharing: list[list[Ranks]] = [[] for _ in range(positives.depth)]
    neighbors = []
    for query, row in enumerate(distances.numpy(), first):
        items, bits = positives.of(query, marks)
        order, ranks = ranker(row, items, query if positives.own else None)
        bits = bits[order]
        levels = np.zeros(len(items), dtype=np.int8)
        for level, own in enumerate(at):
            same = (bits & 1 << level) > 0
            levels += same
            own.append(ranks[np.flatnonzero(same)])
        for level, own in enumerate(sharing, 1):
            own.append(ranks[np.flatnonzero(levels == level)])
        neighbors.append(nearest(row, k))
    return Ranked(
        tuple(_padded(rows) for rows in at),
        tuple(_padded(rows) for rows in sharing),
        torch.from_numpy(np.stack(neighbors)),
    )


def rank_block(distances: Tensor, query_labels: Tensor, gallery_labels: Tensor, k: int) -> Ranked:
    """`rank_rows` by one stable sort on any device. (Q, G), (Q, L), (G, L) -> `Ranked`

    An item at distance infinity is not in the ranking.
    """
    ascending, order = distances.sort(dim=1, stable=True)
    listed = ascending < torch.inf
    same = [
        (column[order] == wanted[:, None]) & listed
        for wanted, column in zip(query_labels.T, gallery_labels.T, strict=True)
    ]
    levels = torch.stack(same).sum(dim=0)
    sharing = [levels == level for level in range(1, len(same) + 1)]
    return Ranked(tuple(map(positive_ranks, same)), tuple(map(positive_ranks, sharing)), order[:, :k])


def _padded(rows: Sequence[Ranks]) -> Tensor:
    table = np.empty((len(rows), max(map(len, rows))))
    for own, row in zip(table, rows, strict=True):
        own[: len(row)] = row
        own[len(row) :] = np.inf
    return torch.from_numpy(table)
