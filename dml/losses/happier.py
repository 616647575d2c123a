import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.losses.loss_contract import Loss
from dml.ops.gradients import block_size, refuse_second_derivative, row_blocks
from dml.ops.pairs import ALL, finest, own_entries
from dml.ops.relevance import level_counts, power_relevance, shared_levels
from dml.runtime.errors import check_number


class SmoothHierarchicalAPLoss(Loss):
    r"""Smooth upper bound of 1 - H-AP from HAPPIER (Ramzi et al., 2022), Eq. 1-5 and supplement A.3.

    Each embedding in turn is the query. s_k is the cosine of the query and item k, and t = s_j - s_k::

        rank(k)  = 1      + sum_{j != k} g(t)
        Hrank(k) = rel(k) + sum_{j != k} min(rel(j), rel(k)) h(t)
        L = mean over queries of 1 - sum_k (Hrank(k) / rank(k)) / sum_k rel(k)

    The sums over k run over the items that share at least one of the L label levels with the query. g and h tell how
    much item j counts as ranked before item k::

        level(j) >= level(k):  g = H(t)                          H(t) = 1 if t >= 0 else 0, without a gradient
        level(j) <  level(k):  g = sigmoid(t / tau)              t <= 0
                                   start + sigmoid(t / tau)      0 < t <= delta
                                   rho (t - delta) + offset      delta < t
        level(j) <= level(k):  h = H(t)
        level(j) >  level(k):  h = H(t), or with ``smooth_h_rank``
                                   leak t                        t <= 0
                                   min(beta t + gamma, 1)        0 < t

    The embeddings are L2-normalized here. With offset = start + sigmoid(delta / tau) and a start of at least 0.5 the
    loss is never below 1 - H-AP, except for ties: a tied item of a lower level counts 1/2.

    Departures: a t as small as rounding errors counts as a tie. The release clamps t / tau to +-50, which changes g
    by less than 2e-22; here t / tau is not clamped. A query whose only positive is itself adds 0; the paper has no
    such query. The loss can be differentiated once, not twice.

    >>> labels = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1]])
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> round(SmoothHierarchicalAPLoss()(embeddings, labels).item(), 3)
    0.106

    Args:
        alpha: exponent of the relevance (l / L)^alpha of level l in Eq. 4.
        tau: temperature of the sigmoid in g.
        rho: slope of g beyond delta.
        delta: gap t beyond which g grows linearly.
        start: height of the step of g at t = 0; the paper's iNaturalist runs use 0, with offset 1.
        offset: value of g just beyond delta.
        smooth_h_rank: whether h is smooth, so that Hrank has a gradient too.
        beta: slope of the smooth h above t = 0, up to the value 1.
        gamma: height of the step of the smooth h at t = 0.
        leak: slope of the smooth h below t = 0.
        include_query: whether the query is one of the items to rank, as in the release.
        relevance: function from the number of items at each level (Q, L + 1) to the relevance of an item at each
            level (Q, L + 1). None is Eq. 4; ``dml.ops.relevance.weighted_ap_relevance`` gives the weighted sum of
            APs of Table 6.
    """

    needs_positives: ClassVar[bool] = True
    takes_queries: ClassVar[bool] = True

    def __init__(
        self,
        alpha: float = 1.0,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        start: float = 0.5,
        offset: float = 1.44,
        smooth_h_rank: bool = False,
        beta: float = 25.0,
        gamma: float = 0.5,
        leak: float = 10.0,
        include_query: bool = True,
        relevance: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        check_number("loss.tau", tau, above=0)
        for name, value in {"alpha": alpha, "rho": rho, "delta": delta, "beta": beta, "leak": leak}.items():
            check_number(f"loss.{name}", value, least=0)
        self.alpha = alpha
        self.tau, self.rho, self.delta, self.start, self.offset = tau, rho, delta, start, offset
        self.smooth_h_rank = smooth_h_rank
        self.beta, self.gamma, self.leak = beta, gamma, leak
        self.include_query = include_query
        self.relevance = relevance

    def forward(self, embeddings: Tensor, labels: Tensor, queries: slice = ALL) -> Tensor:
        """Compute the mean loss of the rows ``queries`` of embeddings (B, D), each compared with the whole batch."""
        unit = F.normalize(embeddings, dim=1)
        columns = labels[:, None] if labels.ndim == 1 else labels
        blocks = row_blocks(range(*queries.indices(len(unit))), 4 * len(unit), unit.device)
        return torch.cat([self._compute_terms(unit, columns, block) for block in blocks]).mean()

    def _compute_terms(self, unit: Tensor, columns: Tensor, queries: slice) -> Tensor:
        """Compute the terms (Q,) of some queries among L2-normalized embeddings (B, D) with labels (B, L)."""
        levels = shared_levels(columns[queries], columns)
        own_entries(levels, queries).fill_(-1)
        has_positives = (levels > 0).any(dim=1)
        if self.include_query:
            own_entries(levels, queries).fill_(columns.shape[1])
        counts = level_counts(levels, columns.shape[1]).to(unit.dtype)
        relevance = self.relevance or partial(power_relevance, alpha=self.alpha)
        h_rank_step = self._h_rank_step if self.smooth_h_rank else None
        lists = GradedLists(levels, relevance(counts), self._rank_step, h_rank_step)
        return (1.0 - graded_average_precision(unit[queries] @ unit.T, lists)) * has_positives

    def _rank_step(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """Compute g of items of a lower level, and its slope, at each gap t; the gaps are overwritten."""
        # The passes over the gaps take most of the loss's time, so g is a sum without a branch, computed in place.
        top = 1.0 / (1.0 + math.exp(-self.delta / self.tau))
        far, above = gaps.clone().gt_(self.delta), gaps.clone().gt_(tie(gaps.dtype))
        counts = gaps.clamp(max=self.delta).div_(self.tau).sigmoid_()
        slopes = torch.addcmul(counts, counts, counts, value=-1.0).div_(self.tau)
        slopes.add_(far, alpha=self.rho - top * (1.0 - top) / self.tau)
        counts.add_(above, alpha=self.start).add_(far, alpha=self.offset - self.start - top)
        return counts.add_(gaps.sub_(self.delta).clamp_(min=0.0), alpha=self.rho), slopes

    def _h_rank_step(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the smooth h of items of a higher level, and the slope of h, at each gap t."""
        above, ramp = gaps > tie(gaps.dtype), self.beta * gaps + self.gamma
        slopes = torch.where(above, self.beta * (ramp < 1.0).to(gaps.dtype), self.leak)
        return torch.where(above, ramp.clamp(max=1.0), self.leak * gaps), slopes


class ClusterLoss(Loss):
    r"""Cluster loss of HAPPIER (Ramzi et al., 2022), Eq. 6, with one proxy for each class of the finest level.

    L = -log(exp(v . p_y / sigma) / sum_z exp(v . p_z / sigma)), averaged over the batch. The embeddings v and the
    proxies p are L2-normalized here, and sigma is the ``temperature``.

    >>> loss = ClusterLoss(num_classes=3, embedding_dim=2)
    >>> loss(torch.eye(2), torch.tensor([0, 2])).shape, loss.proxies.shape
    (torch.Size([]), torch.Size([3, 2]))
    """

    takes_queries: ClassVar[bool] = True

    def __init__(self, num_classes: int, embedding_dim: int, temperature: float = 0.05) -> None:
        super().__init__()
        check_number("loss.temperature", temperature, above=0)
        self.temperature, self.num_classes = temperature, num_classes
        bound = embedding_dim**-0.5
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_dim).uniform_(-bound, bound))

    def forward(self, embeddings: Tensor, labels: Tensor, queries: slice = ALL) -> Tensor:
        """Compute the mean loss of the rows ``queries`` of embeddings (B, D), each compared with the proxies."""
        proxies = F.normalize(self.proxies.to(embeddings.dtype), dim=1)
        cosines = F.normalize(embeddings[queries], dim=1) @ proxies.T
        return F.cross_entropy(cosines / self.temperature, finest(labels)[queries])


Step = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Computes from gaps t = s_j - s_k how much item j counts as ranked before item k, and the slope of that function.

It works elementwise and may overwrite the gaps.
"""


def tie(dtype: torch.dtype) -> float:
    """Return the largest gap of two cosines that counts as a tie: cosines of duplicates differ by rounding errors.

    >>> tie(torch.float32)
    1.9073486328125e-06
    """
    return 16 * torch.finfo(dtype).eps


@dataclass(frozen=True)
class GradedLists:
    """The levels and relevances of each query's items, and the functions that count an item j in the ranks of item k.

    Where no function applies, item j counts 1 if it is before k or tied with k, without a gradient.
    """

    levels: Tensor  # (Q, N) int64, number of label levels that each item shares; -1 for one that isn't in the list
    relevance: Tensor  # (Q, L + 1) of an item of each level
    rank_step: Step  # counts items j of a lower level than k in rank(k)
    h_rank_step: Step | None = None  # counts items j of a higher level than k in Hrank(k); None counts them 1 or 0


def graded_average_precision(similarities: Tensor, lists: GradedLists, block: int | None = None) -> Tensor:
    """Compute each query's sum_k (Hrank(k) / rank(k)) / sum_k rel(k) over the positives k. (Q, N) -> (Q,)

    A query without positives gives 0. The result is differentiable once. A query's value depends on one row of the
    similarities only. The gradient has therefore the size of the similarities; it is computed together with the value,
    and nothing else is stored for the backward pass.

    >>> import math
    >>> def step(gaps: Tensor) -> tuple[Tensor, Tensor]:
    ...     return gaps.sigmoid(), gaps.sigmoid() * (1 - gaps.sigmoid())
    >>> lists = GradedLists(torch.tensor([[1, 0]]), torch.tensor([[0.0, 1.0]]), step)
    >>> round(graded_average_precision(torch.tensor([[math.log(3.0), 0.0]]), lists).item(), 3)
    0.8
    """
    block = block or block_size(similarities.device, on_cpu=2**18)
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
                _add_level(similarities[rows], level.select(rows), lists, precision[rows], gradient[rows])
        ctx.save_for_backward(gradient)
        return precision

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        refuse_second_derivative("graded_average_precision")
        (gradient,) = ctx.saved_tensors
        return outer[:, None] * gradient, None, None


class _Level(NamedTuple):
    """The items k of one level, and the items j that count in their ranks, as columns; padding has weight 0."""

    items: Tensor  # (Q, K) items k of the level
    weights: Tensor  # (Q, K) 1 / sum rel of the query
    ranks: Tensor  # (Q, K) rank(k) without the lower items
    h_ranks: Tensor  # (Q, K) Hrank(k) without the higher items
    lower: Tensor  # (Q, J) items j of lower levels
    lower_weights: Tensor  # (Q, J) weights 1
    higher: Tensor  # (Q, H) items j of higher levels; H is 0 without an ``h_rank_step``
    higher_weights: Tensor  # (Q, H) weights min(rel(j), rel(k))

    def select(self, rows: slice) -> "_Level":
        """Return the same for some of the queries."""
        return _Level(*(part[rows] for part in self))


def _levels(similarities: Tensor, lists: GradedLists) -> Iterator[_Level]:
    """Yield the items of each level from 1 to L."""
    depth = lists.relevance.shape[1] - 1
    counts = level_counts(lists.levels, depth)
    total = (lists.relevance * counts).sum(dim=1, keepdim=True).clamp(min=torch.finfo(similarities.dtype).tiny)
    relevance = lists.relevance.gather(1, lists.levels.clamp(min=0))  # of each item
    ranks, h_ranks = _constant_ranks(similarities, lists, counts, relevance)
    order = lists.levels.argsort(dim=1, descending=True, stable=True)
    for level in range(1, depth + 1):
        items, inside = _select_levels(order, counts, level, level)
        lower, is_lower = _select_levels(order, counts, 0, level - 1)
        # Levels from depth + 1 on select no items.
        higher, is_higher = _select_levels(order, counts, level + 1 if lists.h_rank_step else depth + 1, depth)
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
    """Add the contribution of a level's items to precision (Q,) and to the gradient of precision (Q, N)."""
    in_rank = _StepSums(similarities, level.items, level.lower, level.lower_weights, lists.rank_step)
    ranks, h_ranks = level.ranks + in_rank.counts, level.h_ranks
    if lists.h_rank_step is not None:
        in_h_rank = _StepSums(similarities, level.items, level.higher, level.higher_weights, lists.h_rank_step)
        h_ranks = h_ranks + in_h_rank.counts
        in_h_rank.add_gradient(gradient, level.weights / ranks)
    in_rank.add_gradient(gradient, -level.weights * h_ranks / ranks**2)
    precision += (level.weights * h_ranks / ranks).sum(dim=1)


class _StepSums:
    """Computes sum_j weight(j) step(s_j - s_k) for the items k of each query."""

    def __init__(self, similarities: Tensor, items: Tensor, counted: Tensor, weights: Tensor, step: Step) -> None:
        self.items, self.counted, self.weights = items, counted, weights
        gaps = similarities.gather(1, counted)[:, None, :] - similarities.gather(1, items)[:, :, None]
        values, self.slopes = step(gaps)
        self.counts = (values @ weights[:, :, None]).squeeze(2)

    def add_gradient(self, gradient: Tensor, outer: Tensor) -> None:
        """Add the gradient of sum_k outer(k) counts(k) to ``gradient`` (Q, N); outer (Q, K) is held constant."""
        gradient.scatter_add_(1, self.counted, (outer[:, None, :] @ self.slopes).squeeze(1) * self.weights)
        gradient.scatter_add_(1, self.items, -outer * (self.slopes @ self.weights[:, :, None]).squeeze(2))


def _select_levels(order: Tensor, counts: Tensor, lowest: int, highest: int) -> tuple[Tensor, Tensor]:
    """Select the items from level lowest to highest -> columns (Q, K), and which of them aren't padding (Q, K)."""
    first = counts[:, highest + 1 :].sum(dim=1, keepdim=True)
    number = counts[:, lowest : highest + 1].sum(dim=1, keepdim=True)
    offsets = torch.arange(int(number.max()), device=order.device)
    return order.gather(1, (first + offsets).clamp(max=order.shape[1] - 1)), offsets < number


def _constant_ranks(
    similarities: Tensor, lists: GradedLists, counts: Tensor, relevance: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the parts of each item's rank and Hrank that have no gradient, by sorting. (Q, N) -> (Q, N), (Q, N)"""
    ranks, h_ranks = torch.ones_like(similarities), relevance.clone()
    ascending, order = similarities.sort(dim=1)
    behind = torch.searchsorted(ascending, similarities - tie(similarities.dtype))
    for level in range(1, lists.relevance.shape[1]):
        has_level = lists.levels == level
        num_behind = F.pad(has_level.gather(1, order).cumsum(dim=1), (1, 0)).gather(1, behind)
        before = (counts[:, level, None] - num_behind - has_level.long()).to(similarities.dtype)
        ranks += before * (lists.levels <= level)
        shared = before * relevance.minimum(lists.relevance[:, level, None])
        h_ranks += shared if lists.h_rank_step is None else shared * (lists.levels >= level)
    return ranks, h_ranks
