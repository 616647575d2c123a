"""Metrics of a ranking whose items share levels of the label hierarchy with the query: one value a query.

All take `ranks`: a tensor (Q, P) for each number of levels from 1 to L, with the ranks of the items that share just as
many with the query, from 1 for the nearest item of all, rising; the rest of a shorter row is infinity. So items are
told apart by level, never by their relevance, which two levels may have in common. Items that share nothing count by
the ranks that they take. A query without positives gives NaN.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from dml.metrics.binary import number_of, up_to


def numbers_of(ranks: Sequence[Tensor]) -> Tensor:
    """abs(Omega(l)): how many items share exactly l levels. -> (Q, L + 1) int64, 0 for l = 0"""
    counts = [number_of(own) for own in ranks]
    return torch.stack([torch.zeros_like(counts[0]), *counts], dim=1)


def h_ap(ranks: Sequence[Tensor], relevance: Tensor) -> Tensor:
    """Hierarchical average precision (HAPPIER, Eq. 3). L of (Q, P), (Q, L + 1) -> (Q,) float64

    H-AP = sum_k Hrank(k) / rank(k) / sum_k rel(k), with Hrank(k) = sum of min(rel(j), rel(k)) over k and the items j
    before it.

    Args:
        ranks: of each level's items.
        relevance: float64, that of the query's items at each level, 0 at level 0 (`dml.ops.relevance`).
    """
    gained = torch.zeros_like(relevance[:, 0])
    for level, own in enumerate(ranks, 1):
        gained += relevance[:, level] * (_places(own) / own).sum(dim=1)
    inverse = [_sums(own.reciprocal()) for own in ranks]
    for pair in combinations(range(len(ranks)), 2):
        few, many = sorted(pair, key=lambda level: ranks[level].shape[1])
        shared = relevance[:, few + 1].minimum(relevance[:, many + 1])
        before = torch.searchsorted(ranks[many], ranks[few])
        gained += shared * (before / ranks[few]).sum(dim=1)  # the many before each of the few
        behind = inverse[many][:, -1:] - inverse[many].gather(1, before)
        gained += shared * behind.sum(dim=1)  # each of the few is before the many behind it
    return gained / (relevance * numbers_of(ranks)).sum(dim=1)


def ndcg(ranks: Sequence[Tensor]) -> Tensor:
    """Normalised discounted cumulative gain over the whole ranking. L of (Q, P) -> (Q,) float64

    The gain is 2^level - 1, the discount log2(1 + rank), and the ideal ranking is by falling level.
    """
    counts = numbers_of(ranks)
    discounts = _sums(_discounts(_places(*ranks))).expand(len(counts), -1)
    ideal_places = counts.flip(1).cumsum(dim=1).flip(1)  # of level l and more: the first ones
    gained, ideal = torch.zeros_like(discounts[:, 0]), torch.zeros_like(discounts[:, 0])
    for level, own in enumerate(ranks, 1):
        gained += (2**level - 1) * _discounts(own).sum(dim=1)
        # an item gains 2^(l - 1) for each level l up to its own
        ideal += 2 ** (level - 1) * discounts.gather(1, ideal_places[:, level, None]).squeeze(1)
    return gained / ideal


def asi(ranks: Sequence[Tensor]) -> Tensor:
    """Average set intersection. L of (Q, P) -> (Q,) float64

    ASI = 1/R sum over n from 1 to R of 1/n sum_l min(items of level l in the top n, those in the ideal top n), for
    the R items that share a level; the ideal ranking is by falling level (DyML, Sun et al., 2021).

    The k-th nearest item of level l enters that minimum at n = max(its rank, its rank in the ideal ranking), and
    counts 1/n from there on.
    """
    counts = numbers_of(ranks)
    harmonic = _sums(_places(*ranks).reciprocal()).expand(len(counts), -1)
    positives, better = counts.sum(dim=1, keepdim=True), torch.zeros_like(counts[:, :1])
    gained = torch.zeros_like(harmonic[:, :1])
    for level in range(len(ranks), 0, -1):
        own = up_to(ranks[level - 1], positives.squeeze(1))  # those behind the R nearest count nothing
        missed = own.maximum(better + _places(own)).sub_(1).minimum(positives.double()).long()
        gained += (harmonic.gather(1, positives) - harmonic.gather(1, missed)).sum(dim=1, keepdim=True)
        better = better + counts[:, level, None]
    return (gained / positives).squeeze(1)


def _places(*ranks: Tensor) -> Tensor:
    """1, 2, ... to as many as the tensors have columns together."""
    most = sum(own.shape[1] for own in ranks)
    return torch.arange(1, most + 1, dtype=torch.float64, device=ranks[0].device)


def _discounts(ranks: Tensor) -> Tensor:
    return (1 + ranks).log2_().reciprocal_()


def _sums(values: Tensor) -> Tensor:
    """The sums of the first 0, 1, ..., N values. (..., N) -> (..., N + 1)"""
    sums = values.new_empty(*values.shape[:-1], values.shape[-1] + 1)
    sums[..., 0] = 0
    torch.cumsum(values, dim=-1, out=sums[..., 1:])
    return sums
