from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.gradients import in_blocks
from dml.ops.pairs import ALL, finest, masked_softmax, pair_masks, unit_distances
from dml.runtime.errors import check_number


class RankedListLoss(Loss):
    r"""Ranked List Loss (Wang et al., 2019 and 2021), Eq. 8-14.

    Each embedding in turn is the query i, and the others are its gallery. Those that violate the margin count::

        P* = {positives: d_ij > alpha - m},  N* = {negatives: d_ij < alpha}
        L_P(i) = sum_P* w_ij (d_ij - (alpha - m)) / sum_P* w_ij,  w_ij = exp(T_p (d_ij - (alpha - m)))
        L_N(i) = sum_N* w_ij (alpha - d_ij) / sum_N* w_ij,        w_ij = exp(T_n (alpha - d_ij))
        L = 1/N sum_i (1 - lambda) L_P(i) + lambda L_N(i)

    The embeddings are L2-normalized here, and d_ij are their Euclidean distances, from 0 to 2. The weights carry no
    gradient, and neither does the gallery: "only f(x_i) is updated" (3.2.4).

    Departures: the weights are normalized by a softmax, so that large temperatures don't overflow. A query without
    positives adds 0; the paper has none.

    >>> import torch
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> round(RankedListLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 3)
    0.051

    Args:
        alpha: distance that negatives are pushed beyond; None is 1 + margin / 2, as in RLL-Simpler (3.4).
        margin: distance between positives and negatives, m; positives are pulled within alpha - m.
        negative_temperature: T_n; with 0 all violating negatives weigh the same, and the larger it is the more the
            nearest ones weigh.
        positive_temperature: T_p; with 0 all violating positives weigh the same, and the larger it is the more the
            farthest ones weigh.
        negative_weight: weight of the negatives, lambda, from 0 to 1; the positives have weight 1 - lambda.
        detach_gallery: whether the gradient reaches the query alone; False lets it reach both embeddings of a pair.
    """

    needs_positives: ClassVar[bool] = True
    takes_queries: ClassVar[bool] = True

    def __init__(
        self,
        alpha: float | None = None,
        margin: float = 0.4,
        negative_temperature: float = 10.0,
        positive_temperature: float = 0.0,
        negative_weight: float = 0.5,
        detach_gallery: bool = True,
    ) -> None:
        super().__init__()
        check_number("loss.margin", margin, least=0)
        check_number("loss.alpha", 1.0 if alpha is None else alpha, above=0)
        check_number("loss.negative_weight", negative_weight, least=0, most=1)
        check_number("loss.negative_temperature", negative_temperature)
        check_number("loss.positive_temperature", positive_temperature)
        self._alpha = alpha
        self.margin = margin
        self.negative_temperature = negative_temperature
        self.positive_temperature = positive_temperature
        self.negative_weight = negative_weight
        self.detach_gallery = detach_gallery

    @property
    def alpha(self) -> float:
        """The distance that negatives are pushed beyond; it follows a margin that `scheduler.loss` changes."""
        return 1.0 + self.margin / 2.0 if self._alpha is None else self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._alpha = value

    def forward(self, embeddings: Tensor, labels: Tensor, queries: slice = ALL) -> Tensor:
        """Compute the mean loss of the rows ``queries`` of embeddings (B, D), each compared with the whole batch."""
        unit = F.normalize(embeddings, dim=1)
        gallery = unit.detach() if self.detach_gallery else unit

        def compute(block: slice) -> tuple[Tensor]:
            distances = unit_distances(unit[block], gallery)
            positives, negatives = pair_masks(finest(labels), block)
            too_far = distances - (self.alpha - self.margin)
            too_near = self.alpha - distances
            positive_term = _weighted_mean(too_far, positives, self.positive_temperature)
            negative_term = _weighted_mean(too_near, negatives, self.negative_temperature)
            lists = (1.0 - self.negative_weight) * positive_term + self.negative_weight * negative_term
            return (lists * positives.any(dim=1),)

        return in_blocks(compute, range(*queries.indices(len(unit))), len(unit), unit.device)[0].mean()


def _weighted_mean(violations: Tensor, pairs: Tensor, temperature: float) -> Tensor:
    """Compute Eq. 11 or 12: each query's violations > 0 of ``pairs``, weighted by exp(temperature x violation)."""
    violating = pairs & (violations > 0)
    weights = masked_softmax(temperature * violations.detach(), violating)
    return (weights * violations).sum(dim=1)
