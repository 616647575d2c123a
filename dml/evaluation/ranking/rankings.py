"""The ranks of the positives of some queries, from the distances to all gallery items."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.evaluation.ranking.positives import Positives
from dml.metrics.binary import pad_ranks
from dml.retrieval.ranks import Ranker, nearest
from dml.retrieval.top import sort_with_ties

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LARGEST_PART = 2**20
"""The number of distances that are ranked together: several rows also of large galleries, so that calls cost little."""


class Rankings(NamedTuple):
    """The ranks of the items that metrics need, for Q queries: (Q, P) float64, rising, padded with infinity; P >= 1."""

    by_level: tuple[Tensor, ...]
    """For each level, the ranks of the items with the query's label."""
    by_shared_levels: tuple[Tensor, ...]
    """For each number of levels from 1 to L, the ranks of the items that share exactly as many with the query."""
    nearest: Tensor
    """The nearest items (Q, k) int64."""


def rank_rows(distances: Tensor, positives: Positives, first: int, k: int) -> Rankings:
    """Rank the gallery on CPU for the queries from `first` on; ties are in the gallery's order. (Q, G) -> `Rankings`"""
    marks, depth = positives.allocate_marks(), positives.depth
    coarsest = 1 << depth - 1
    rows = min(max(LARGEST_PART // distances.shape[1], 1), len(distances))
    ranker = Ranker(rows, distances.shape[1])
    by_level: list[list[Floats]] = [[] for _ in range(depth)]
    by_shared_levels: list[list[Floats]] = [[] for _ in range(depth)]
    for start in range(0, len(distances), rows):
        part = distances[start : start + rows].numpy()
        queries = range(first + start, first + start + len(part))
        items, bits, numbers = positives.find_shared(queries, marks)
        located = np.flatnonzero(bits != coarsest)  # most items share the coarsest level alone
        excluded = positives.excluded[queries.start : queries.stop]
        sorted_ranks, places = ranker(part, items, numbers, excluded, located=located)
        sorted_bits = np.full_like(bits, coarsest)
        sorted_bits[places] = bits[located]
        ranks = _Ranks(sorted_ranks.astype(np.float64), np.cumsum(numbers))
        at_least, exactly = _split_by_shared_levels(ranks, np.bitwise_count(sorted_bits), depth)
        if positives.is_tree:  # items with the query's label at a level share it and all coarser levels
            with_label = at_least[::-1]
        else:
            with_label = [ranks.select(np.flatnonzero(sorted_bits & 1 << level)) for level in range(depth)]
        for lists, selected in ((by_level, with_label), (by_shared_levels, exactly)):
            for rows_of_level, selected_ranks in zip(lists, selected, strict=True):
                rows_of_level += selected_ranks.split()
    neighbors = [nearest(row, k) for row in distances.numpy()]
    ranks_by_level, ranks_by_shared = (tuple(map(_pad, rows)) for rows in (by_level, by_shared_levels))
    return Rankings(ranks_by_level, ranks_by_shared, torch.from_numpy(np.stack(neighbors)))


def rank_block(distances: Tensor, query_labels: Tensor, gallery_labels: Tensor, k: int) -> Rankings:
    """Rank the gallery by one stable sort on any device, see `rank_rows`. (Q, G), (Q, L), (G, L) -> `Rankings`

    An item at distance infinity is not in the ranking.
    """
    bits = _mark_shared(distances, query_labels, gallery_labels)
    _, order = sort_with_ties(distances)
    bits_in_order = bits.gather(1, order)
    # What follows takes the positives alone, out of all items.
    rows, columns = bits_in_order.nonzero(as_tuple=True)
    positive_bits, ranks = bits_in_order[rows, columns], columns + 1
    same = [(positive_bits >> level) & 1 for level in range(query_labels.shape[1])]
    levels = torch.stack(same).sum(dim=0)

    def select(is_selected: Tensor) -> Tensor:
        places = is_selected.nonzero().squeeze(1)
        return _with_a_column(pad_ranks(rows[places], ranks[places], len(distances)))

    by_level = tuple(select(is_same) for is_same in same)
    by_shared_levels = tuple(select(levels == number) for number in range(1, len(same) + 1))
    return Rankings(by_level, by_shared_levels, order[:, :k])


def _mark_shared(distances: Tensor, query_labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """Set bit i of each item that has the query's label at level i, unless its distance is infinite. -> (Q, G)"""
    depth = query_labels.shape[1]
    bits = torch.zeros_like(distances, dtype=torch.uint8 if depth <= 8 else torch.int64)
    for level in range(depth):
        bits |= (query_labels[:, level, None] == gallery_labels[:, level]).to(bits.dtype) << level
    return bits.masked_fill_(distances == torch.inf, 0)


def _with_a_column(ranks: Tensor) -> Tensor:
    """Return ranks (Q, P) with at least one column, see `Rankings`."""
    return ranks if ranks.shape[1] else ranks.new_full((len(ranks), 1), torch.inf)


class _Ranks(NamedTuple):
    """The ranks of items of several queries, query after query.

    Args:
        ranks: (P,) ranks, rising for each query.
        stops: (Q,) the position behind the last item of each query.
    """

    ranks: Floats
    stops: Integers

    def select(self, places: Integers) -> "_Ranks":
        """Return the ranks at some places (S,), which rise."""
        return _Ranks(self.ranks[places], np.searchsorted(places, self.stops))

    def split(self) -> list[Floats]:
        """Return the ranks of each query."""
        return [self.ranks[start:stop] for start, stop in pairwise([0, *self.stops.tolist()])]


def _split_by_shared_levels(
    ranks: _Ranks, levels: npt.NDArray[np.unsignedinteger[Any]], depth: int
) -> tuple[list[_Ranks], list[_Ranks]]:
    """Return the ranks of items that share at least 1, 2, ... levels with the query, and exactly as many.

    Each list is selected from the one before, which is much longer as a rule.

    Args:
        ranks: ranks of items that share any level.
        levels: (P,) number of levels that each item shares.
        depth: number of levels.
    """
    at_least, exactly = [ranks], []
    for level in range(1, depth):
        more = levels > level
        exactly.append(ranks.select(np.flatnonzero(~more)))
        places = np.flatnonzero(more)
        ranks, levels = ranks.select(places), levels[places]
        at_least.append(ranks)
    return at_least, [*exactly, ranks]


def _pad(rows: Sequence[Floats]) -> Tensor:
    """Return rows of different lengths as one tensor, padded with infinity, of at least one column."""
    table = np.empty((len(rows), max(1, *map(len, rows))))
    for padded_row, row in zip(table, rows, strict=True):
        padded_row[: len(row)] = row
        padded_row[len(row) :] = np.inf
    return torch.from_numpy(table)
