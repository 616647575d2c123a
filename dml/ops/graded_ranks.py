"""Hierarchical average precision of similarities, with smooth steps where a gradient is wanted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.ops.relevance import level_counts

Step = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Gaps t = s_j - s_k, its to overwrite -> how much j counts as before k, and the slope of that; elementwise."""


def tie(dtype: torch.dtype) -> float:
    """A gap between cosines up to this is none: those of duplicates differ by rounding noise."""
    return 16 * torch.finfo(dtype).eps


@dataclass(frozen=True)
class GradedLists:
    """What the queries' lists hold, and how an item j counts in the ranks of an item k.

    An item that no step is given for counts 1 if it is before k or tied with it, without a gradient.

    Args:
        levels: (Q, N) int64, the levels shared with the query; -1 for an item that isn't in its list.
        relevance: (Q, L + 1), that of the query's items at each level.
        rank_step: counts an item of a lower level than k's in rank(k).
        h_rank_step: counts an item of a higher level than k's in Hrank(k).
    """

    levels: Tensor
    relevance: Tensor
    rank_step: Step
    h_rank_step: Step | None = None


def graded_average_precision(similarities: Tensor, lists: GradedLists, block: int = 2**18) -> Tensor:
    """sum_k (Hrank(k) / rank(k)) / sum_k rel(k) over a query's positives k; 0 if it has none. (Q, N) -> (Q,)

    Differentiable once. A query's value depends on its own row of similarities, so its gradient is a row too: it
    is computed along with the value, from the same gaps, and nothing else is kept for the backward pass. The
    gaps exist for as many queries at a time as make ``block`` of them.
    """
    precision: Tensor = _GradedAveragePrecision.apply(similarities, lists, block)
    return precision


class _GradedAveragePrecision(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, similarities: Tensor, lists: GradedLists, block: int) -> Tensor:
        precision, gradient = torch.zeros_like(similarities[:, 0]), torch.zeros_like(similarities)
        for level in _levels(similarities, lists):
            size = max(1, block // max(1, level.items.shape[1] * max(level.lower.shape[1], level.higher.shape[1])))
            for start in range(0, len(similarities), size):
                rows = slice(start, start + size)
                _add_level(similarities[rows], level.of(rows), lists, precision[rows], gradient[rows])
        ctx.save_for_backward(gradient)
        return precision

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        # once_differentiable only objects if ``outer`` has a graph, and a second derivative would miss this part
        if torch.is_grad_enabled():
            raise RuntimeError("graded_average_precision is differentiable once: create_graph=True isn't supported")
        (gradient,) = ctx.saved_tensors
        return outer[:, None] * gradient, None, None


class _Level(NamedTuple):
    """The items k of one level, and the others that count smoothly in their ranks; columns of the similarities.

    Queries have unequal numbers of them: the rest of a row is padding with weight 0.
    """

    items: Tensor
    """(Q, K)"""
    weights: Tensor
    """(Q, K): 1 / sum rel of the query."""
    ranks: Tensor
    """(Q, K): rank(k) but for the lower items."""
    h_ranks: Tensor
    """(Q, K): Hrank(k) but for the higher items."""
    lower: Tensor
    """(Q, J)"""
    lower_weights: Tensor
    """(Q, J): 1."""
    higher: Tensor
    """(Q, H); without an ``h_rank_step`` none."""
    higher_weights: Tensor
    """(Q, H): min(rel(j), rel(k))."""

    def of(self, rows: slice) -> "_Level":
        """Of some of the queries."""
        return _Level(*(part[rows] for part in self))


def _levels(similarities: Tensor, lists: GradedLists) -> Iterator[_Level]:
    depth = lists.relevance.shape[1] - 1
    counts = level_counts(lists.levels, depth)
    total = (lists.relevance * counts).sum(dim=1, keepdim=True).clamp(min=torch.finfo(similarities.dtype).tiny)
    relevance = _of_items(lists)
    ranks, h_ranks = _plain_ranks(similarities, lists, counts)
    order = lists.levels.argsort(dim=1, descending=True, stable=True)
    for level in range(1, depth + 1):
        items, inside = _between(order, counts, level, level)
        lower, is_lower = _between(order, counts, 0, level - 1)
        # beyond the highest level there is none
        higher, is_higher = _between(order, counts, level + 1 if lists.h_rank_step else depth + 1, depth)
        shared = relevance.gather(1, higher).minimum(lists.relevance[:, level, None])
        yield _Level(
            items,
            inside / total,
            ranks.gather(1, items),
            h_ranks.gather(1, items),
            lower,
            is_lower.to(similarities.dtype),
            higher,
            shared * is_higher,
        )


def _add_level(similarities: Tensor, level: _Level, lists: GradedLists, precision: Tensor, gradient: Tensor) -> None:
    """Adds to precision (Q,) and its gradient (Q, N) what the items of a level contribute."""
    in_rank = _Smooth(similarities, level.items, level.lower, level.lower_weights, lists.rank_step)
    ranks, h_ranks = level.ranks + in_rank.counts, level.h_ranks
    if lists.h_rank_step is not None:
        in_h_rank = _Smooth(similarities, level.items, level.higher, level.higher_weights, lists.h_rank_step)
        h_ranks = h_ranks + in_h_rank.counts
        in_h_rank.add_gradient(gradient, level.weights / ranks)
    in_rank.add_gradient(gradient, -level.weights * h_ranks / ranks**2)
    precision += (level.weights * h_ranks / ranks).sum(dim=1)


class _Smooth:
    """sum_j weight(j) step(s_j - s_k) of items k and others j of each query."""

    def __init__(self, similarities: Tensor, items: Tensor, others: Tensor, weights: Tensor, step: Step) -> None:
        """similarities (Q, N); items (Q, K) and others (Q, J) as their columns; weights (Q, J)."""
        self.items, self.others, self.weights = items, others, weights
        gaps = similarities.gather(1, others)[:, None, :] - similarities.gather(1, items)[:, :, None]
        values, self.slopes = step(gaps)
        self.counts = (values @ weights[:, :, None]).squeeze(2)

    def add_gradient(self, gradient: Tensor, outer: Tensor) -> None:
        """Adds to ``gradient`` (Q, N) that of the counts, each times its ``outer`` (Q, K)."""
        gradient.scatter_add_(1, self.others, (outer[:, None, :] @ self.slopes).squeeze(1) * self.weights)
        gradient.scatter_add_(1, self.items, -outer * (self.slopes @ self.weights[:, :, None]).squeeze(2))


def _between(order: Tensor, counts: Tensor, lowest: int, highest: int) -> tuple[Tensor, Tensor]:
    """The items of the levels from lowest to highest, as columns, and which of them are no padding. 2 of (Q, most)

    Args:
        order: (Q, N), the columns in descending order of level.
        counts: (Q, L + 1), of ``level_counts``.
        lowest: the levels' first.
        highest: the levels' last.
    """
    first = counts[:, highest + 1 :].sum(dim=1, keepdim=True)
    number = counts[:, lowest : highest + 1].sum(dim=1, keepdim=True)
    places = torch.arange(int(number.max()), device=order.device)
    return order.gather(1, (first + places).clamp(max=order.shape[1] - 1)), places < number


def _of_items(lists: GradedLists) -> Tensor:
    """Each item's relevance. -> (Q, N)"""
    return lists.relevance.gather(1, lists.levels.clamp(min=0))


def _plain_ranks(similarities: Tensor, lists: GradedLists, counts: Tensor) -> tuple[Tensor, Tensor]:
    """What the item itself and those without a step add to its rank and H-rank. (Q, N) -> 2 of (Q, N)

    Sorted, an item knows how many others are before it: no pairs of items are formed.
    """
    relevance = _of_items(lists)
    ranks, h_ranks = torch.ones_like(similarities), relevance.clone()
    ascending, order = similarities.sort(dim=1)
    behind = torch.searchsorted(ascending, similarities - tie(similarities.dtype))
    for level in range(1, lists.relevance.shape[1]):
        there = lists.levels == level
        passed = F.pad(there.gather(1, order).cumsum(dim=1), (1, 0)).gather(1, behind)
        before = (counts[:, level, None] - passed - there.long()).to(similarities.dtype)
        ranks += before * (lists.levels <= level)
        shared = before * relevance.minimum(lists.relevance[:, level, None])
        h_ranks += shared if lists.h_rank_step is None else shared * (lists.levels >= level)
    return ranks, h_ranks
