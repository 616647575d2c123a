"""Metrics of rankings by the number of label levels that items share with the query. Each gives one value a query.

An item that shares exactly l of the L levels of the label hierarchy with the query is "of level l". All metrics take
``ranks``, a list of L tensors. The tensor ranks[l - 1] (Q, P) holds the ranks of the items of level l in ascending
order, where the nearest item of all has rank 1; rows with fewer than P items end with infinity. P differs between
levels. Items of level 0 aren't listed, but they take up ranks. A query with no item of a level above 0 gives NaN.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.metrics.binary import count_positives, precisions, trim_ranks


def count_by_level(ranks: Sequence[Tensor]) -> Tensor:
    """Count the items of each level; level 0 gets 0. L of (Q, P) -> (Q, L + 1) int64

    >>> count_by_level([torch.tensor([[2.0, 4.0]]), torch.tensor([[1.0]])]).tolist()
    [[0, 2, 1]]
    """
    counts = [count_positives(level_ranks) for level_ranks in ranks]
    return torch.stack([torch.zeros_like(counts[0]), *counts], dim=1)


class GradedRanks(tuple[Tensor, ...]):
    """The ranks of the items of each level from 1 to L, (Q, P) each, with what several metrics take from them.

    ``at_least`` are those of each level and above, if they are known; None merges them.

    >>> GradedRanks([torch.tensor([[2.0]]), torch.tensor([[1.0]])]).at_least
    (tensor([[1., 2.]]), tensor([[1.]]))
    """

    def __new__(cls, ranks: Iterable[Tensor], at_least: Iterable[Tensor] | None = None) -> Self:
        """Make the tuple of the ranks; graded ranks alone are returned as they are."""
        if isinstance(ranks, cls) and at_least is None:
            return ranks
        graded = super().__new__(cls, ranks)
        if at_least is not None:
            graded.at_least = tuple(at_least)
        return graded

    @cached_property
    def at_least(self) -> tuple[Tensor, ...]:
        """The ranks of the items of each level and above, rising. L of (Q, P')"""
        return tuple(torch.cat([*self[level:]], dim=1).sort(dim=1).values for level in range(len(self)))

    @cached_property
    def counts(self) -> Tensor:
        """The number of items of each level (Q, L + 1), see `count_by_level`."""
        return count_by_level(self)


def h_ap(ranks: Sequence[Tensor], relevance: Tensor) -> Tensor:
    """Compute hierarchical average precision (HAPPIER, Eq. 3). L of (Q, P), (Q, L + 1) -> (Q,) float64

    H-AP = sum_k Hrank(k) / rank(k) / sum_k rel(k), where Hrank(k) is the sum of min(rel(j), rel(k)) over item k and
    the items j ranked before it. `dml.ops.relevance` gives the relevance of each level, which is 0 for level 0.

    >>> ranks = [torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64)]
    >>> h_ap(ranks, torch.tensor([[0.0, 0.5, 1.0]], dtype=torch.float64)).tolist()
    [1.0]
    """
    ranks = GradedRanks(ranks)
    # Let c(l) be the lowest relevance of level l and all above, which rises with l from c(0) = 0. If m is the lower of
    # the levels of j and k, min(rel(j), rel(k)) is at least c(m), the sum of c(l) - c(l - 1) over all l that both items
    # reach. That part of H-AP is a weighted sum of APs, and as a rule it is all.
    least = relevance.flip(1).cummin(dim=1).values.flip(1)
    sums = torch.stack([precisions(level_ranks).sum(dim=1) for level_ranks in ranks.at_least], dim=1)
    gained = (least.diff(dim=1) * sums).sum(dim=1)
    if ((relevance - least) * ranks.counts).any():
        gained += _sum_beyond(least, ranks, relevance)
    return gained / (relevance * ranks.counts).sum(dim=1)


def _sum_beyond(least: Tensor, ranks: GradedRanks, relevance: Tensor) -> Tensor:
    """Sum what min(rel(j), rel(k)) is above the lowest relevance of both levels and all above, over rank(k)."""
    total = torch.zeros_like(relevance[:, 0])
    for level, level_ranks in enumerate(ranks, 1):
        more = relevance[:, level] - least[:, level]
        if (more * ranks.counts[:, level]).any():
            total += more * precisions(level_ranks).sum(dim=1)
    for lower, higher in combinations(range(1, len(ranks) + 1), 2):
        more = relevance[:, lower].minimum(relevance[:, higher]) - least[:, lower]
        rows = (more * ranks.counts[:, lower] * ranks.counts[:, higher]).nonzero().squeeze(1)
        if len(rows):  # a third level, above the lower one, is less relevant than both
            total[rows] += more[rows] * _sum_across(ranks[lower - 1][rows], ranks[higher - 1][rows])
    return total


def ndcg(ranks: Sequence[Tensor]) -> Tensor:
    """Compute normalized discounted cumulative gain over the whole ranking. L of (Q, P) -> (Q,) float64

    The gain of an item is 2^level - 1, and its discount is log2(1 + rank). In the ideal ranking the levels descend.

    >>> ranks = [torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)]
    >>> ndcg(ranks).round(decimals=3).tolist()
    [0.797]
    """
    counts = GradedRanks(ranks).counts
    levels = torch.arange(1, len(ranks) + 1, dtype=torch.float64, device=counts.device)
    gained = ((2.0**levels - 1) * _sum_discounts(ranks, counts)).sum(dim=1)
    # The gain 2^level - 1 is the sum of 2^(l - 1) over all levels l from 1 to the item's level, and the ideal ranking
    # begins with the items of level l and above, for each l.
    at_least_counts = counts.flip(1).cumsum(dim=1).flip(1)[:, 1:]
    ideal = (2.0 ** (levels - 1) * _partial_sums(_discounts(_one_to_n(*ranks)))[at_least_counts]).sum(dim=1)
    return gained / ideal


def asi(ranks: Sequence[Tensor]) -> Tensor:
    """Compute average set intersection (DyML, Sun et al., 2021). L of (Q, P) -> (Q,) float64

    ASI = 1/R sum over n from 1 to R of 1/n sum_l min(number of items of level l in the top n, the same number in the
    ideal top n). R is the number of items of level 1 and above. In the ideal ranking the levels descend.

    The k-th nearest item of level l is counted by that minimum from n = max(rank, ideal rank) on, and adds 1/n for
    each such n up to R.

    >>> asi([torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)]).tolist()
    [0.5]
    """
    counts = GradedRanks(ranks).counts
    harmonic = _partial_sums(_one_to_n(*ranks).reciprocal())
    positives, better = counts.sum(dim=1, keepdim=True), torch.zeros_like(counts[:, :1])
    up_to_last, sums = harmonic[positives], harmonic.expand(len(counts), -1)
    gained = torch.zeros_like(up_to_last)
    for level in range(len(ranks), 0, -1):
        level_ranks = trim_ranks(ranks[level - 1], positives.squeeze(1))  # items behind the R nearest add nothing
        before = level_ranks.maximum(better + _one_to_n(level_ranks)).sub_(1).minimum(positives).long()
        gained += (up_to_last - sums.gather(1, before)).sum(dim=1, keepdim=True)
        better = better + counts[:, level, None]
    return (gained / positives).squeeze(1)


def _sum_across(first: Tensor, second: Tensor) -> Tensor:
    """Sum the number of items of the other list before each item, over its rank, of both. (Q, P), (Q, P') -> (Q,)"""
    few, many = sorted((first, second), key=lambda ranks: ranks.shape[1])
    before = _count_before(many, few)
    inverse = _partial_sums(many.reciprocal())
    return (before / few + inverse[:, -1:] - inverse.gather(1, before)).sum(dim=1)


def _count_before(ranks: Tensor, bounds: Tensor) -> Tensor:
    """Count the ranks below each bound in each row, as torch.searchsorted. (Q, P), (Q, R) -> (Q, R) int64"""
    if ranks.is_cuda:
        return torch.searchsorted(ranks, bounds)
    # numpy takes less than half of torch's time, because it makes use of bounds that rise.
    counts = np.empty(bounds.shape, dtype=np.int64)
    for counts_of_row, row, bounds_of_row in zip(counts, ranks.numpy(), bounds.numpy(), strict=True):
        counts_of_row[:] = row.searchsorted(bounds_of_row)
    return torch.from_numpy(counts)


def _one_to_n(*ranks: Tensor) -> Tensor:
    """Return 1, 2, ..., n as float64, where n is the number of columns of all tensors together."""
    num_columns = sum(level_ranks.shape[1] for level_ranks in ranks)
    return torch.arange(1, num_columns + 1, dtype=torch.float64, device=ranks[0].device)


def _discounts(ranks: Tensor) -> Tensor:
    """Compute the factor 1 / log2(1 + rank) of each rank."""
    return (1 + ranks).log2_().reciprocal_()


def _sum_discounts(ranks: Sequence[Tensor], counts: Tensor) -> Tensor:
    """Compute the sum of 1 / log2(1 + rank) of each query and level. L of (Q, P), (Q, L + 1) -> (Q, L)"""
    if ranks[0].is_cuda or (largest := _find_largest_rank(ranks, counts)) > 2**22:  # a table of 64 MB
        sums = [_discounts(level_ranks).sum(dim=1) for level_ranks in ranks]
    else:  # half the time
        table = _tabulate_discounts(largest.bit_length())
        places = (level_ranks.clamp(max=len(table) - 1).long() for level_ranks in ranks)
        sums = [torch.from_numpy(table.take(level_places.numpy())).sum(dim=1) for level_places in places]
    return torch.stack(sums, dim=1)


def _find_largest_rank(ranks: Sequence[Tensor], counts: Tensor) -> int:
    """Return the largest rank of all queries and levels; 0 if there is none. L of (Q, P), (Q, L + 1)"""
    largest = 0
    for level_ranks, numbers in zip(ranks, counts[:, 1:].numpy().T, strict=True):
        has_any = numbers > 0
        largest = max(largest, int(level_ranks.numpy()[has_any, numbers[has_any] - 1].max(initial=0)))
    return largest


@lru_cache(maxsize=8)
def _tabulate_discounts(bits: int) -> npt.NDArray[np.float64]:
    """Return the discounts of all ranks of so many bits, and 0 behind them, for infinity."""
    discounts = _discounts(torch.arange(2**bits, dtype=torch.float64))
    return np.append(discounts.numpy(), 0.0)


def _partial_sums(values: Tensor) -> Tensor:
    """Compute the sums of the first 0, 1, ..., N values. (..., N) -> (..., N + 1)"""
    sums = values.new_empty(*values.shape[:-1], values.shape[-1] + 1)
    sums[..., 0] = 0
    torch.cumsum(values, dim=-1, out=sums[..., 1:])
    return sums
