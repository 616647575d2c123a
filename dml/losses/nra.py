from typing import Any, ClassVar

import torch
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.gradients import refuse_second_derivative, row_blocks
from dml.ops.pairs import finest, pair_masks
from dml.runtime.errors import check_number


class NonlinearRankApproximationLoss(Loss):
    r"""Nonlinear Rank Approximation (Schall et al., 2019), Eq. 6-13.

    Each of the m embeddings in turn is the anchor i. D_ij is the Euclidean distance to embedding j; D_i,max and
    D_i,min are the largest and the smallest of them::

        r+_i = (max_positives D_ij - D_i,min) / (D_i,max - D_i,min)
        r-_i = (min_negatives D_ij - D_i,min) / (D_i,max - D_i,min)
        w(r) = (2r)^alpha / 2 below 1/2, 1 - (2(1 - r))^alpha / 2 from there,  s = 1 - w(r)
        J = -1/m sum_i log(s+_i + epsilon) + log(1 - s-_i + epsilon)

    The embeddings are not L2-normalized; r doesn't depend on their scale and origin. The gradient reaches both
    embeddings of each distance, also of D_i,max and D_i,min. Of several embeddings at the same largest or smallest
    distance, one gets the gradient.

    Departures: Eq. 8-9 as printed normalize r by the two distances themselves, which makes the loss a constant; here
    r is normalized by Eq. 6, as in the paper's text and Fig. 2. An anchor without positives or without negatives adds
    0; the paper has none. For an anchor with the same distance to all embeddings, r is 0 and has no gradient.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> round(NonlinearRankApproximationLoss()(embeddings, torch.tensor([0, 1, 0, 1])).item(), 3)
    13.869

    Args:
        alpha: exponent of w, and its slope at r = 1/2; with 1, w(r) = r.
        epsilon: smallest argument of the logarithms, which bounds each of them by -log(epsilon).
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, alpha: float = 4.0, epsilon: float = 1e-4) -> None:
        super().__init__()
        check_number("loss.alpha", alpha, above=0)
        check_number("loss.epsilon", epsilon, above=0)
        self.alpha = alpha
        self.epsilon = epsilon

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        ranks, has_both = _extreme_ranks(_standardize(embeddings), *pair_masks(finest(labels)))
        positive_weight, negative_weight = self._transfer(ranks)
        terms = torch.stack([1.0 - positive_weight, negative_weight]).add(self.epsilon).log().sum(dim=0)
        return -(terms * has_both).mean()

    def _transfer(self, ranks: Tensor) -> Tensor:
        """Compute w of Eq. 10 at ranks in [0, 1]; its halves are one function of the distance to 0 or to 1."""
        low = ranks < 0.5
        end_distances = torch.minimum(ranks, 1.0 - ranks)
        inside = end_distances != 0  # without the mask, the slope at the end would be infinite for alpha < 1
        tail = 0.5 * (2.0 * end_distances.masked_fill(~inside, 0.5)) ** self.alpha * inside
        return torch.where(low, tail, 1.0 - tail)


def _standardize(embeddings: Tensor) -> Tensor:
    """Shift and scale the embeddings (B, D) to mean 0 and largest entry 1, so that their squares are accurate."""
    rows = embeddings - embeddings.detach().mean(dim=0)
    scale = rows.detach().abs().max()
    return rows / torch.where(scale == 0, 1.0, scale)


def _extreme_ranks(rows: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    chosen, has_both = _choose_extremes(rows, positives, negatives)
    extremes: Tensor = _ChosenDistances.apply(rows, chosen)
    smallest, largest = extremes.amin(dim=0), extremes.amax(dim=0)
    spread = largest - smallest
    # Distances that differ by rounding errors alone are equal.
    alike = spread <= 16 * torch.finfo(spread.dtype).eps * largest
    return ((extremes[:2] - smallest) / spread.masked_fill(alike, 1.0)).masked_fill(alike, 0.0), has_both


@torch.no_grad()
def _choose_extremes(rows: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Choose each row's farthest and nearest positive and negative (4, B), and tell which rows have both kinds (B,)."""
    squares, chosen, has_both = rows.square().sum(dim=1), [], []
    for block in row_blocks(range(len(rows)), len(rows), rows.device):
        squared = squares[block, None] + squares - 2.0 * rows[block] @ rows.T
        # ``far`` rises with the distance and ``near`` falls. Both are at least 1, so that multiplying by a 0/1 mask
        # excludes entries; filling by a mask would be slower.
        far = squared - squared.min() + 1.0
        near = far.max() - far + 1.0
        positive, negative = positives[block].to(rows.dtype), negatives[block].to(rows.dtype)
        maxima = [weights.max(dim=1) for weights in (far * positive, near * negative, near * positive, far * negative)]
        chosen.append(torch.stack([indices for _, indices in maxima]))
        has_both.append((maxima[0].values > 0) & (maxima[1].values > 0))
    return torch.cat(chosen, dim=1), torch.cat(has_both)


class _ChosenDistances(torch.autograd.Function):
    """Computes distances (K, B) of rows (B, D) to chosen rows; autograd would allocate six more tensors (K, B, D)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, chosen: Tensor) -> Tensor:
        differences = rows.index_select(0, chosen.flatten()).view(*chosen.shape, -1).sub_(rows)
        distances: Tensor = torch.linalg.vector_norm(differences, dim=2)
        ctx.save_for_backward(differences, distances, chosen)
        return distances

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        refuse_second_derivative("NonlinearRankApproximationLoss")
        differences, distances, chosen = ctx.saved_tensors
        slopes = torch.where(distances == 0, 0.0, gradient / distances)
        pulls = differences * slopes[:, :, None]
        total = pulls.sum(dim=0).neg_()
        return total.index_add_(0, chosen.flatten(), pulls.flatten(0, 1)), None
