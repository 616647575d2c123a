from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.pairs import finest, masked_logsumexp, pair_masks, softplus
from dml.ops.training_protocols import EmbeddingBank
from dml.runtime.errors import InputError, check_choice

Form = Literal["centralized", "pairwise", "cross_entropy", "k_nearest"]


class TupletLoss(Loss):
    r"""(N+P+1)-tuplet loss (the thesis on local neighborhood sampling, chapter 3): Eq. 3.1, 3.4, 3.5, soft labels.

    Each embedding in turn is the center i. D_ij = f_i . f_j is a dot product, and P_i and N_i are the positives and
    negatives of the center in the batch::

        centralized (3.5)    -log(1/|P_i| sum_P exp(D_ij) / sum_{k != i} exp(D_ik))
        pairwise (3.1)       log(1 + 1/|P_i| sum_P sum_N exp(D_ik - D_ij))
        cross_entropy (3.3)  -1/|P_i| sum_P log(exp(D_ij) / sum_{k != i} exp(D_ik))
        k_nearest (3.4, 4.1) that of 3.5 for the drawn centers alone, each among its own K neighbors

    The loss is the mean over the centers that have a positive. The embeddings are not L2-normalized here.

    For "k_nearest" the batch has to be one of the local neighborhood sampler: each center is followed by the neighbors
    that were drawn with it. They are those of the embedding bank, which tells where the next center begins.

    Departures: Eq. 3.2 says that the forms are equal, which is true only for one positive; here each form is an option.
    Sums of exponentials are computed by logsumexp, so that large embeddings don't overflow.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> round(TupletLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 3)
    0.485
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, form: Form = "centralized") -> None:
        super().__init__()
        check_choice("loss.form", form, get_args(Form))
        self.form = form
        self.needs_indices = form == "k_nearest"
        self.neighbors = torch.empty(0, 0, dtype=torch.long)
        if self.needs_indices:  # only then it is a `UsesEmbeddingBank`, which costs a pass over all images
            self.num_bank_neighbors = 0  # as many as the sampler needs

    def set_embedding_bank(self, bank: EmbeddingBank) -> None:
        """Find the drawn centers by the neighbors of this bank; see `UsesEmbeddingBank`."""
        self.neighbors = bank.neighbors

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) and rows (B,) of the training table."""
        similarities = embeddings @ embeddings.T
        positives, negatives = pair_masks(finest(labels))
        if self.form == "k_nearest":
            if indices is None or not self.neighbors.numel():
                raise InputError("loss.form=k_nearest: needs the neighbors of sampler=local_neighborhood")
            drawn = _find_drawn_neighbors(indices.tolist(), self.neighbors).to(positives.device)
            positives, negatives = positives & drawn, negatives & drawn
        centers = positives.any(dim=1)
        count = positives.sum(dim=1, dtype=similarities.dtype).clamp(min=1)
        log_sum = masked_logsumexp(similarities, positives | negatives)
        if self.form == "pairwise":  # the double sum of Eq. 3.1 is the product of two sums
            pairs = masked_logsumexp(similarities, negatives) + masked_logsumexp(-similarities, positives)
            terms = softplus(pairs - count.log())
        elif self.form == "cross_entropy":  # whose targets are 1/|P_i| on the positives
            terms = log_sum - (similarities * positives).sum(dim=1) / count
        else:
            terms = log_sum - (masked_logsumexp(similarities, positives) - count.log())
        return torch.where(centers, terms, 0.0).sum() / centers.sum().clamp(min=1)


def _find_drawn_neighbors(rows: list[int], neighbors: Tensor) -> Tensor:
    """Tell which rows of a batch were drawn as neighbors of each center -> (B, B) bool; a neighbor has none."""
    is_drawn = torch.zeros(len(rows), len(rows), dtype=torch.bool)
    center, neighborhood = 0, set[int]()
    for position, row in enumerate(rows):
        if row in neighborhood:
            is_drawn[center, position] = True
        else:
            center, neighborhood = position, {*neighbors[row].tolist()}
    return is_drawn
