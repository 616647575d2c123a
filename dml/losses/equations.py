r"""Losses that pytorch-metric-learning computes in another form, as the equations of the papers have them.

P and N are the positive and negative pairs of a batch, in both orders, and T its triplets (i, j, k) with (i, j) in P
and (i, k) in N. D_ij is the distance of the library's loss, f_i are the embeddings, and m and alpha the library's
``neg_margin`` and ``alpha``::

    ContrastiveLoss      nra_eq_1        mean over P of D_ij^2 and over N of max(0, m - D_ij)^2, over both together
    LiftedStructureLoss  rll_eq_3        1/(2|P|) sum_P max(0, D_ij + log(sum_N exp(m - D_ik) + sum_N exp(m - D_jl)))
    AngularLoss          thesis_eq_2_23  1/|T| sum_T max(0, |f_i - f_j|^2 - 4 tan^2(alpha) |f_k - (f_i + f_j) / 2|^2)

The library's contrastive loss doesn't square the distances, and divides by the pairs that give more than 0. Its lifted
loss squares each term, as NRA's Eq. 3 and the thesis's Eq. 2.17 do. Its angular loss has log(1 + sum exp) over the
negatives. An equation has its own mean, so the library's ``reducer`` and ``pos_margin`` aren't used.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dml.ops.reductions import masked_logsumexp

Equation = Callable[[Any, Tensor, Tensor, Tensor], Tensor]
"""A function of a loss of the library, embeddings (B, D), and masks (B, B) of positive and negative pairs -> scalar."""


def _contrastive(loss: Any, embeddings: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    distances: Tensor = loss.distance(embeddings)
    gaps = torch.where(positives, distances, (loss.neg_margin - distances).clamp(min=0))
    return gaps[positives | negatives].square().mean()


def _lifted(loss: Any, embeddings: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    distances: Tensor = loss.distance(embeddings)
    pushed = masked_logsumexp(loss.neg_margin - distances, negatives)
    pushed = pushed.clamp(min=torch.finfo(pushed.dtype).min / 4)  # two rows of -inf would have a gradient of NaN
    gaps = distances + torch.logaddexp(pushed[:, None], pushed[None, :])
    return gaps[positives].clamp(min=0).mean() / 2


def _angular(loss: Any, embeddings: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    first, second = positives.triu().nonzero(as_tuple=True)  # both orders of a pair have the same center
    centers = (embeddings[first] + embeddings[second]) / 2
    pulled = (embeddings[first] - embeddings[second]).square().sum(dim=1)
    products = centers @ embeddings.T
    pushed = centers.square().sum(dim=1)[:, None] - 2 * products + embeddings.square().sum(dim=1)
    slope: Tensor = 4 * loss.alpha.tan() ** 2
    gaps = (pulled[:, None] - slope * pushed).clamp(min=0)
    return (gaps * negatives[first]).sum() / negatives[first].sum().clamp(min=1)


EQUATIONS: dict[str, dict[str, Equation]] = {
    "ContrastiveLoss": {"nra_eq_1": _contrastive},
    "LiftedStructureLoss": {"rll_eq_3": _lifted},
    "AngularLoss": {"thesis_eq_2_23": _angular},
}
"""The equations of each loss of pytorch-metric-learning, by the name of its class."""
