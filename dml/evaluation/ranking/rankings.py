"""The ranks of the positives of some queries, from the distances to all gallery items."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.evaluation.ranking.positives import Positives
from dml.metrics.binary import pad_ranks
from dml.metrics.graded import GradedRanks
from dml.retrieval.ranks import ChosenRanks, Ranks, nearest, rank_chosen
from dml.retrieval.top import sort_with_ties

Integers = npt.NDArray[np.int64]

LARGEST_PART = 2**20
"""The number of distances that are ranked together. With fewer, threads wait for the interpreter's lock more often."""


class Rankings(NamedTuple):
    """The ranks of the items that metrics need, for Q queries: (Q, P) float64, rising, padded with infinity; P >= 1."""

    by_level: tuple[Tensor, ...]
    """For each level, the ranks of the items with the query's label."""
    by_shared_levels: GradedRanks
    """For each number of levels from 1 to L, the ranks of the items that share exactly as many with the query."""
    nearest: Tensor
    """The nearest items (Q, k) int64."""


def rank_rows(distances: Tensor, positives: Positives, first: int, k: int) -> Rankings:
    """Rank the gallery on CPU for the queries from `first` on; ties are in the gallery's order. (Q, G) -> `Rankings`"""
    chosen = _rank_chosen(distances.numpy(), positives, first)
    ranks = _Ranks(chosen.ranks, np.cumsum(chosen.numbers))
    at_least, exactly = _split_by_shared_levels(ranks, positives.count_shared(chosen.codes), positives.depth)
    if positives.is_tree:  # items with the query's label at a level share it and all coarser levels
        by_level = at_least[::-1]
    else:
        with_label = [np.flatnonzero(chosen.codes & 1 << level) for level in range(positives.depth)]
        by_level = [ranks.select(places).pad() for places in with_label]
    nearest_items = [nearest(row, k) for row in distances.numpy()]
    return Rankings(tuple(by_level), GradedRanks(exactly, at_least), torch.from_numpy(np.stack(nearest_items)))


def _rank_chosen(distances: npt.NDArray[np.float32], positives: Positives, first: int) -> ChosenRanks:
    """Rank the items that share any level with the queries from `first` on, part by part. (Q, G)"""
    rows = min(max(LARGEST_PART // distances.shape[1], 1), len(distances))
    codes = np.empty((rows, distances.shape[1]), dtype=np.min_scalar_type(positives.largest_code))
    parts = []
    for start in range(0, len(distances), rows):
        part = distances[start : start + rows]
        queries = range(first + start, first + start + len(part))
        numbers = positives.code_items(queries, codes[: len(part)])
        parts.append(rank_chosen(part, codes[: len(part)], numbers))
    return ChosenRanks(*map(np.concatenate, zip(*parts, strict=True)))


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
    numbers = range(1, len(same) + 1)
    at_least = [select(levels >= number) for number in numbers]
    exactly = [*(select(levels == number) for number in numbers[:-1]), at_least[-1]]
    return Rankings(by_level, GradedRanks(exactly, at_least), order[:, :k])


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

    ranks: Ranks
    stops: Integers

    def select(self, places: Integers) -> "_Ranks":
        """Return the ranks at some places (S,), which rise."""
        return _Ranks(self.ranks.take(places), np.searchsorted(places, self.stops))

    def pad(self) -> Tensor:
        """Return the ranks (Q, P') of Q queries, padded with infinity, with at least one column."""
        starts = np.append(0, self.stops[:-1])
        numbers = self.stops - starts
        table = np.empty((len(numbers), max(1, numbers.max())))
        for row, start, number in zip(table, starts.tolist(), numbers.tolist(), strict=True):
            row[:number] = self.ranks[start : start + number]
            row[number:] = np.inf
        return torch.from_numpy(table)


def _split_by_shared_levels(
    ranks: _Ranks, levels: npt.NDArray[np.unsignedinteger[Any]], depth: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the ranks (Q, P') of items that share at least 1, 2, ... levels with the query, and exactly as many.

    Each list is selected from the one before, which is much longer as a rule.

    Args:
        ranks: ranks of items that share any level.
        levels: (P,) number of levels that each item shares.
        depth: number of levels.
    """
    at_least, exactly = [ranks.pad()], []
    for level in range(1, depth):
        more = levels > level
        exactly.append(ranks.select(np.flatnonzero(~more)).pad())
        places = np.flatnonzero(more)
        ranks, levels = ranks.select(places), levels.take(places)
        at_least.append(ranks.pad())
    return at_least, [*exactly, at_least[-1]]
