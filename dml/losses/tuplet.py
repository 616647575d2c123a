from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.errors import InputError
from dml.ops.pairs import finest, pair_masks
from dml.ops.precision import full_precision
from dml.ops.reductions import masked_logsumexp, softplus

Form = Literal["centralized", "pairwise", "cross_entropy"]


class TupletLoss(Loss):
    r"""(N+P+1)-tuplet loss (the thesis on local neighborhood sampling, chapter 3), Eq. 3.1, 3.5 and its soft labels.

    Each embedding in turn is the centre i. D_ij = f_i . f_j is a dot product, and P_i and N_i are the positives and
    negatives of the centre in the batch::

        centralized (3.5)    -log(1/|P_i| sum_P exp(D_ij) / sum_{k != i} exp(D_ik))
        pairwise (3.1)       log(1 + 1/|P_i| sum_P sum_N exp(D_ik - D_ij))
        cross_entropy (3.3)  -1/|P_i| sum_P log(exp(D_ij) / sum_{k != i} exp(D_ik))

    The loss is the mean over the centres that have a positive. The embeddings are not L2-normalised here.

    Departures: Eq. 3.2 says that the forms are equal, which is true only for one positive; here each form is an option.
    Sums of exponentials are computed by logsumexp, so that large embeddings don't overflow.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> round(TupletLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 3)
    0.485

    Args:
        form: "centralized", "pairwise" or "cross_entropy".
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, form: Form = "centralized") -> None:
        super().__init__()
        if form not in get_args(Form):
            raise InputError(f"loss.form={form}: must be one of {', '.join(get_args(Form))}")
        self.form = form

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        similarities = embeddings @ embeddings.T
        positives, negatives = pair_masks(finest(labels))
        centres = positives.any(dim=1)
        count = positives.sum(dim=1, dtype=similarities.dtype).clamp(min=1)
        if self.form == "centralized":
            terms = _centralized(similarities, positives, negatives, count)
        elif self.form == "pairwise":
            terms = _pairwise(similarities, positives, negatives, count)
        else:
            terms = _cross_entropy(similarities, positives, negatives, count)
        return torch.where(centres, terms, 0.0).sum() / centres.sum().clamp(min=1)


def _centralized(similarities: Tensor, positives: Tensor, negatives: Tensor, count: Tensor) -> Tensor:
    """Compute Eq. 3.5 for each centre -> (B,)."""
    mean_of_positives = masked_logsumexp(similarities, positives) - count.log()
    return masked_logsumexp(similarities, positives | negatives) - mean_of_positives


def _pairwise(similarities: Tensor, positives: Tensor, negatives: Tensor, count: Tensor) -> Tensor:
    """Compute Eq. 3.1 for each centre -> (B,); the double sum is the product of two sums."""
    pairs = masked_logsumexp(similarities, negatives) + masked_logsumexp(-similarities, positives)
    return softplus(pairs - count.log())


def _cross_entropy(similarities: Tensor, positives: Tensor, negatives: Tensor, count: Tensor) -> Tensor:
    """Compute Eq. 3.3 for each centre -> (B,): a cross entropy whose targets are 1/|P_i| on the positives."""
    return masked_logsumexp(similarities, positives | negatives) - (similarities * positives).sum(dim=1) / count
