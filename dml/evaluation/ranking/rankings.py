"""The ranks of the positives of some queries, from the distances to all gallery items."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.evaluation.ranking.positives import Positives
from dml.metrics.binary import positive_ranks
from dml.retrieval.ranks import Ranker, nearest

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LARGEST_PART = 2**18
"""The number of distances that are ranked together: their keys fit a processor's cache."""


class Rankings(NamedTuple):
    """The ranks of the items that metrics need, for Q queries: (Q, P) float64, rising, padded with infinity."""

    by_level: tuple[Tensor, ...]
    """For each level, the ranks of the items with the query's label."""
    by_shared_levels: tuple[Tensor, ...]
    """For each number of levels from 1 to L, the ranks of the items that share exactly as many with the query."""
    nearest: Tensor
    """The nearest items (Q, k) int64."""


def rank_rows(distances: Tensor, positives: Positives, first: int, k: int) -> Rankings:
    """Rank the gallery on CPU for the queries from `first` on; ties are in the gallery's order. (Q, G) -> `Rankings`"""
    marks, depth = positives.allocate_marks(), positives.depth
    rows = min(max(LARGEST_PART // distances.shape[1], 1), len(distances))
    ranker = Ranker(rows, distances.shape[1])
    by_level: list[list[Floats]] = [[] for _ in range(depth)]
    by_shared_levels: list[list[Floats]] = [[] for _ in range(depth)]
    for start in range(0, len(distances), rows):
        part = distances[start : start + rows].numpy()
        queries = range(first + start, first + start + len(part))
        items, bits, numbers = positives.find_shared(queries, marks)
        order, places = ranker(part, items, numbers, positives.excluded[queries.start : queries.stop])
        bits, ranks, stops = bits[order], places.astype(np.float64), np.cumsum(numbers)
        levels = np.bitwise_count(bits)
        for level in range(depth):
            by_level[level] += _split(ranks, (bits & 1 << level) > 0, stops)
            by_shared_levels[level] += _split(ranks, levels == level + 1, stops)
    neighbors = [nearest(row, k) for row in distances.numpy()]
    ranks_by_level, ranks_by_shared = (tuple(map(_pad, rows)) for rows in (by_level, by_shared_levels))
    return Rankings(ranks_by_level, ranks_by_shared, torch.from_numpy(np.stack(neighbors)))


def rank_block(distances: Tensor, query_labels: Tensor, gallery_labels: Tensor, k: int) -> Rankings:
    """Rank the gallery by one stable sort on any device, see `rank_rows`. (Q, G), (Q, L), (G, L) -> `Rankings`

    An item at distance infinity is not in the ranking.
    """
    ascending, order = distances.sort(dim=1, stable=True)
    is_ranked = ascending < torch.inf
    same = [
        (column[order] == labels[:, None]) & is_ranked
        for labels, column in zip(query_labels.T, gallery_labels.T, strict=True)
    ]
    levels = torch.stack(same).sum(dim=0)
    shared = [levels == level for level in range(1, len(same) + 1)]
    return Rankings(tuple(map(positive_ranks, same)), tuple(map(positive_ranks, shared)), order[:, :k])


def _split(ranks: Floats, selected: npt.NDArray[np.bool_], stops: Integers) -> list[Floats]:
    """Return the selected ranks of each query; the ranks of a query end where those of the next begin, at `stops`."""
    if not selected.all():
        places = np.flatnonzero(selected)
        ranks, stops = ranks[places], np.searchsorted(places, stops)
    return [ranks[start:stop] for start, stop in pairwise([0, *stops.tolist()])]


def _pad(rows: Sequence[Floats]) -> Tensor:
    """Return rows of different lengths as one tensor, padded with infinity."""
    table = np.empty((len(rows), max(map(len, rows))))
    for padded_row, row in zip(table, rows, strict=True):
        padded_row[: len(row)] = row
        padded_row[len(row) :] = np.inf
    return torch.from_numpy(table)
