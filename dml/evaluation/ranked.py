"""Where the positives of some queries stand in their rankings, from the distances to all gallery items."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.evaluation.positives import Positives
from dml.metrics.binary import positive_ranks
from dml.retrieval.ranks import Ranker, nearest

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

AT_ONCE = 2**18  # distances that are ranked together: with more, a processor's cache no longer holds their keys


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
    marks, depth = positives.marks(), positives.depth
    rows = min(max(AT_ONCE // distances.shape[1], 1), len(distances))
    ranker = Ranker(rows, distances.shape[1])
    at: list[list[Floats]] = [[] for _ in range(depth)]
    sharing: list[list[Floats]] = [[] for _ in range(depth)]
    for start in range(0, len(distances), rows):
        part = distances[start : start + rows].numpy()
        queries = range(first + start, first + start + len(part))
        items, bits, numbers = positives.of(queries, marks)
        order, places = ranker(part, items, numbers, positives.excluded[queries.start : queries.stop])
        bits, ranks, stops = bits[order], places.astype(np.float64), np.cumsum(numbers)
        levels = np.bitwise_count(bits)
        for level in range(depth):
            at[level] += _split(ranks, (bits & 1 << level) > 0, stops)
            sharing[level] += _split(ranks, levels == level + 1, stops)
    neighbors = [nearest(row, k) for row in distances.numpy()]
    return Ranked(tuple(map(_padded, at)), tuple(map(_padded, sharing)), torch.from_numpy(np.stack(neighbors)))


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


def _split(ranks: Floats, kept: npt.NDArray[np.bool_], stops: Integers) -> list[Floats]:
    """Those that are kept of the ranks of each query, which are one after the other up to the `stops`."""
    if not kept.all():
        places = np.flatnonzero(kept)
        ranks, stops = ranks[places], np.searchsorted(places, stops)
    return [ranks[start:stop] for start, stop in pairwise([0, *stops.tolist()])]


def _padded(rows: Sequence[Floats]) -> Tensor:
    table = np.empty((len(rows), max(map(len, rows))))
    for own, row in zip(table, rows, strict=True):
        own[: len(row)] = row
        own[len(row) :] = np.inf
    return torch.from_numpy(table)
