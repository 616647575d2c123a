from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.ops.pairs import finest, pair_masks
from dml.ops.precision import full_precision


class TripletSemihardLoss(nn.Module):
    r"""TensorFlow contrib's ``triplet_semihard_loss``, with which NRA (Schall et al., 2019) compares in Table I.

    D are squared Euclidean distances. Each ordered positive pair (i, j) has one negative, the nearest one of those
    farther away than j, or else the farthest of all::

        D_in = min {D_ik : k negative of i, D_ik > D_ij}, or max {D_ik : k negative of i} where there is none
        L = 1/P sum_{(i, j)} max(0, margin + D_ij - D_in)          P: the number of positive pairs

    Pairs whose term is 0 count in P. The embeddings are not L2-normalised here.

    Departures: a batch without positive pairs is worth 0, where TensorFlow divides 0 by 0. An anchor without
    negatives adds 0; TensorFlow takes the anchor itself for its farthest negative.

    Args:
        margin: least difference between the squared distances of the negative and of the positive.
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        positives, negatives = pair_masks(finest(labels))
        # without a matrix product: equal distances stay equal, and which negative is chosen depends on it
        distances = torch.cdist(embeddings, embeddings, compute_mode="donot_use_mm_for_euclid_dist").square()
        chosen = distances.masked_fill(~negatives, torch.inf).gather(1, _negatives(distances.detach(), negatives))
        terms = F.relu(self.margin + distances - chosen)
        return torch.where(positives, terms, 0.0).sum() / positives.sum().clamp(min=1)


def _negatives(distances: Tensor, negatives: Tensor) -> Tensor:
    """The negative of each pair (i, j) -> (B, B) indices; of an anchor without negatives any index."""
    ascending, order = distances.masked_fill(~negatives, torch.inf).sort(dim=1)
    beyond = torch.searchsorted(ascending, distances.contiguous(), right=True)
    farthest = negatives.sum(dim=1, keepdim=True) - 1
    return order.gather(1, torch.minimum(beyond, farthest).clamp(min=0))
