import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.losses.loss_contract import Loss
from dml.ops.errors import InputError
from dml.ops.graded_ranks import GradedLists, graded_average_precision, tie
from dml.ops.pairs import ALL, finest, own_entries
from dml.ops.precision import full_precision
from dml.ops.relevance import level_counts, power_relevance, shared_levels


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

    The embeddings are L2-normalised here. With offset = start + sigmoid(delta / tau) and a start of at least 0.5 the
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
        if tau <= 0.0:
            raise InputError(f"loss.tau={tau}: the temperature of the sigmoid must be above 0")
        if delta < 0.0:
            raise InputError(f"loss.delta={delta}: the gap beyond which the rank grows linearly must be 0 or more")
        self.alpha = alpha
        self.tau, self.rho, self.delta, self.start, self.offset = tau, rho, delta, start, offset
        self.smooth_h_rank = smooth_h_rank
        self.beta, self.gamma, self.leak = beta, gamma, leak
        self.include_query = include_query
        self.relevance = relevance

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor, queries: slice = ALL) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar.

        The mean is over the rows ``queries``, each of which is compared with the whole batch.
        """
        unit = F.normalize(embeddings, dim=1)
        columns = labels[:, None] if labels.ndim == 1 else labels
        levels = shared_levels(columns[queries], columns)
        own_entries(levels, queries).fill_(-1)
        has_positives = (levels > 0).any(dim=1)
        if self.include_query:
            own_entries(levels, queries).fill_(columns.shape[1])
        counts = level_counts(levels, columns.shape[1]).to(unit.dtype)
        relevance = self.relevance or partial(power_relevance, alpha=self.alpha)
        h_rank_step = self._h_rank_step if self.smooth_h_rank else None
        lists = GradedLists(levels, relevance(counts), self._rank_step, h_rank_step)
        return ((1.0 - graded_average_precision(unit[queries] @ unit.T, lists)) * has_positives).mean()

    def _rank_step(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """Compute g of items of a lower level, and the slope of g, at each gap t. The gaps are overwritten.

        The passes over the gaps take most of the loss's time. g is therefore a sum of a clamped sigmoid, steps and a
        ramp, which is computed in place and without a branch.
        """
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
    proxies p are L2-normalised here.

    >>> loss = ClusterLoss(num_classes=3, embedding_dim=2)
    >>> loss(torch.eye(2), torch.tensor([0, 2])).shape, loss.proxies.shape
    (torch.Size([]), torch.Size([3, 2]))

    Args:
        num_classes: number of classes of the finest level, C.
        embedding_dim: size of an embedding, D.
        temperature: divisor of the cosines, sigma.

    Raises:
        InputError: if ``temperature`` is not above 0.
    """

    needs_positives: ClassVar[bool] = False
    takes_queries: ClassVar[bool] = True

    def __init__(self, num_classes: int, embedding_dim: int, temperature: float = 0.05) -> None:
        super().__init__()
        if not temperature > 0.0:
            raise InputError(f"loss.temperature={temperature}: must be above 0, such as 0.05")
        self.temperature = temperature
        bound = embedding_dim**-0.5
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_dim).uniform_(-bound, bound))

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor, queries: slice = ALL) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar.

        The mean is over the rows ``queries``, each of which is compared with the proxies.
        """
        proxies = F.normalize(self.proxies.to(embeddings.dtype), dim=1)
        cosines = F.normalize(embeddings[queries], dim=1) @ proxies.T
        return F.cross_entropy(cosines / self.temperature, finest(labels)[queries])
