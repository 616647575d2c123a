from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.gradients import block_size, in_blocks
from dml.ops.pairs import finest, pair_masks
from dml.runtime.errors import check_number


class TripletSemihardLoss(Loss):
    r"""Triplet loss with semi-hard negatives: TensorFlow contrib's ``triplet_semihard_loss``.

    NRA (Schall et al., 2019) compares with this loss in Table I. D_ij are squared Euclidean distances. Each ordered
    positive pair (i, j) has one negative n: the nearest negative that is farther from i than j is, or the farthest
    negative if there is none::

        D_in = min {D_ik : k negative of i, D_ik > D_ij}, or max {D_ik : k negative of i} if that set is empty
        L = 1/P sum_{(i, j)} max(0, margin + D_ij - D_in)          P: the number of positive pairs

    P includes pairs whose term is 0. The embeddings are not L2-normalized here.

    Departures: a batch without positive pairs gives 0, where TensorFlow divides 0 by 0. An anchor without negatives
    adds 0; TensorFlow takes the anchor itself as the farthest negative.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> round(TripletSemihardLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 3)
    0.3
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        check_number("loss.margin", margin, least=0)
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        matrix = _euclidean_distances(embeddings)

        def compute(block: slice) -> tuple[Tensor, Tensor]:
            distances, (positives, negatives) = matrix[block].square(), pair_masks(finest(labels), block)
            chosen_indices = _choose_negatives(distances.detach(), negatives)
            chosen_distances = distances.masked_fill(~negatives, torch.inf).gather(1, chosen_indices)
            terms = F.relu(self.margin + distances - chosen_distances)
            return torch.where(positives, terms, 0.0).sum(dim=1), positives.sum(dim=1)

        total, count = in_blocks(compute, range(len(embeddings)), len(embeddings), embeddings.device)
        return total.sum() / count.sum().clamp(min=1)


def _euclidean_distances(embeddings: Tensor) -> Tensor:
    """Compute the distances of all pairs. (B, D) -> (B, B)"""
    # On a GPU the backward pass of torch.cdist holds all B D differences of each row that it is given: a few at a time.
    size = block_size(embeddings.device, on_cpu=len(embeddings) * embeddings.numel()) // max(1, embeddings.numel())
    # A matrix product would round equal distances to different values, which changes the choice of negatives.
    parts = torch.split(embeddings, max(1, size))
    return torch.cat([torch.cdist(part, embeddings, compute_mode="donot_use_mm_for_euclid_dist") for part in parts])


def _choose_negatives(distances: Tensor, negatives: Tensor) -> Tensor:
    """Choose the negative of each pair (i, j) -> indices (B, B), arbitrary for an anchor without negatives."""
    ascending, order = distances.masked_fill(~negatives, torch.inf).sort(dim=1)
    beyond = torch.searchsorted(ascending, distances.contiguous(), right=True)
    farthest = negatives.sum(dim=1, keepdim=True) - 1
    return order.gather(1, torch.minimum(beyond, farthest).clamp(min=0))
