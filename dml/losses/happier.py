import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.ops.errors import InputError
from dml.ops.graded_ranks import GradedLists, graded_average_precision, tie
from dml.ops.pairs import finest
from dml.ops.precision import full_precision
from dml.ops.relevance import level_counts, power_relevance, shared_levels


class SmoothHierarchicalAPLoss(nn.Module):
    r"""The smooth upper bound of 1 - H-AP of HAPPIER (Ramzi et al., 2022), Eq. 1-5 and its supplement A.3.

    Each embedding in turn is the query; with t = s_j - s_k between the cosines of two of its items::

        rank(k)  = 1      + sum_{j != k} g(t)
        Hrank(k) = rel(k) + sum_{j != k} min(rel(j), rel(k)) h(t)
        L = mean over queries of 1 - sum_k (Hrank(k) / rank(k)) / sum_k rel(k)

    over the items k that share a level of the labels with the query, of L levels. j counts as before k::

        level(j) >= level(k):  g = H(t)                          H(t) = 1 if t >= 0 else 0, without a gradient
        level(j) <  level(k):  g = sigmoid(t / tau)              t <= 0
                                   start + sigmoid(t / tau)      0 < t <= delta
                                   rho (t - delta) + offset      delta < t
        level(j) <= level(k):  h = H(t)
        level(j) >  level(k):  h = H(t), or with ``smooth_h_rank``
                                   leak t                        t <= 0
                                   min(beta t + gamma, 1)        0 < t

    The embeddings are L2-normalised here. With offset = start + sigmoid(delta / tau) the loss is never below 1 -
    H-AP, ties apart: a tied item of a lower level counts 1/2.

    Departures: gaps of rounding noise are ties. The release clamps t / tau to +-50, which changes g by less than
    2e-22 and isn't done. A query whose only positive is itself (the paper has none) has nothing to rank and adds
    0. The gradient itself can't be differentiated again.

    Args:
        alpha: of the relevance of Eq. 4: a level's weight is (l / L)^alpha.
        tau: temperature of the sigmoid.
        rho: slope of a rank beyond delta.
        delta: gap beyond which the rank grows linearly.
        start: height of the rank's step at 0; the paper's iNaturalist runs set 0, with offset 1.
        offset: the rank's step at delta.
        smooth_h_rank: whether Hrank has a gradient too.
        beta: slope of the smooth Hrank up to 1.
        gamma: its step at 0.
        leak: its slope below 0.
        include_query: whether the query is one of its own items, as in the release.
        relevance: counts (Q, L + 1) of a query's items at each level -> their relevance (Q, L + 1); None is Eq. 4,
            ``dml.ops.relevance.weighted_ap_relevance`` the weighted sum of APs of Table 6.
    """

    needs_positives: ClassVar[bool] = True

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
        if tau <= 0.0:
            raise InputError(f"loss.tau={tau}: the sigmoid's temperature is above 0")
        if delta < 0.0:
            raise InputError(f"loss.delta={delta}: the gap at which the rank turns linear is at least 0")
        self.alpha = alpha
        self.tau, self.rho, self.delta, self.start, self.offset = tau, rho, delta, start, offset
        self.smooth_h_rank = smooth_h_rank
        self.beta, self.gamma, self.leak = beta, gamma, leak
        self.include_query = include_query
        self.relevance = relevance

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        unit = F.normalize(embeddings, dim=1)
        columns = labels[:, None] if labels.ndim == 1 else labels
        levels = shared_levels(columns, columns).fill_diagonal_(-1)
        has_positives = (levels > 0).any(dim=1)
        if self.include_query:
            levels.fill_diagonal_(columns.shape[1])
        counts = level_counts(levels, columns.shape[1]).to(unit.dtype)
        relevance = self.relevance or partial(power_relevance, alpha=self.alpha)
        h_rank_step = self._h_rank_step if self.smooth_h_rank else None
        lists = GradedLists(levels, relevance(counts), self._rank_step, h_rank_step)
        return ((1.0 - graded_average_precision(unit @ unit.T, lists)) * has_positives).mean()

    def _rank_step(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """g of an item of a lower level, and its slope.

        The sigmoid stops at delta, where the linear part takes over: sums of ramps and steps, in place and without
        a branch, as the passes over the gaps are what takes the time.
        """
        top = 1.0 / (1.0 + math.exp(-self.delta / self.tau))
        far, above = gaps.clone().gt_(self.delta), gaps.clone().gt_(tie(gaps.dtype))
        counts = gaps.clamp(max=self.delta).div_(self.tau).sigmoid_()
        slopes = torch.addcmul(counts, counts, counts, value=-1.0).div_(self.tau)
        slopes.add_(far, alpha=self.rho - top * (1.0 - top) / self.tau)
        counts.add_(above, alpha=self.start).add_(far, alpha=self.offset - self.start - top)
        return counts.add_(gaps.sub_(self.delta).clamp_(min=0.0), alpha=self.rho), slopes

    def _h_rank_step(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """The smooth h of an item of a higher level, and its slope."""
        above, ramp = gaps > tie(gaps.dtype), self.beta * gaps + self.gamma
        slopes = torch.where(above, self.beta * (ramp < 1.0).to(gaps.dtype), self.leak)
        return torch.where(above, ramp.clamp(max=1.0), self.leak * gaps), slopes


class ClusterLoss(nn.Module):
    r"""Cluster loss of HAPPIER (Ramzi et al., 2022), Eq. 6: one proxy a class of the finest level.

    L = -log(exp(v . p_y / sigma) / sum_z exp(v . p_z / sigma)), averaged over the batch; embeddings v and proxies
    p are L2-normalised here.

    Args:
        num_classes: C.
        embedding_dim: D.
        temperature: sigma.
    """

    needs_positives: ClassVar[bool] = False

    def __init__(self, num_classes: int, embedding_dim: int, temperature: float = 0.05) -> None:
        super().__init__()
        self.temperature = temperature
        bound = embedding_dim**-0.5
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_dim).uniform_(-bound, bound))

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        proxies = F.normalize(self.proxies.to(embeddings.dtype), dim=1)
        cosines = F.normalize(embeddings, dim=1) @ proxies.T
        return F.cross_entropy(cosines / self.temperature, finest(labels))
