from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dml.ops.errors import InputError
from dml.ops.pairs import finest, pair_masks
from dml.ops.precision import full_precision


class NonlinearRankApproximationLoss(nn.Module):
    r"""Nonlinear Rank Approximation (Schall et al., 2019), Eq. 6-13.

    Each embedding in turn is the anchor; D_ij are its Euclidean distances to the m - 1 others, D_i,max and
    D_i,min the largest and the smallest of them::

        r+_i = (max_positives D_ij - D_i,min) / (D_i,max - D_i,min)
        r-_i = (min_negatives D_ij - D_i,min) / (D_i,max - D_i,min)
        w(r) = (2r)^alpha / 2 below 1/2, 1 - (2(1 - r))^alpha / 2 from there,  s = 1 - w(r)
        J = -1/m sum_i log(s+_i + epsilon) + log(1 - s-_i + epsilon)

    The embeddings are not L2-normalised; their scale and origin cancel in r. The gradient reaches both ends of
    each distance, D_i,max and D_i,min among them; of neighbours at equal distances one carries it.

    Departures: Eq. 8-9 as printed normalise by the two distances themselves, which makes the loss a constant;
    r is normalised by Eq. 6, as the text and Fig. 2 have it. An anchor without positives or without negatives
    (the paper has none) has nothing to rank and adds 0. One with all others at the same distance has the nearest
    everywhere, r = 0, and no gradient.

    Args:
        alpha: slope of w at r = 1/2; 1 takes the ranks as they are.
        epsilon: bounds each logarithm at -log(epsilon).
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, alpha: float = 4.0, epsilon: float = 1e-4) -> None:
        super().__init__()
        if alpha <= 0.0:
            raise InputError(f"loss.alpha={alpha}: the exponent of Eq. 10 is above 0")
        if epsilon <= 0.0:
            raise InputError(f"loss.epsilon={epsilon}: it keeps the logarithms of Eq. 13 finite and is above 0")
        self.alpha = alpha
        self.epsilon = epsilon

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        ranks, ranked = _decisive_ranks(_standardised(embeddings), *pair_masks(finest(labels)))
        positive_weight, negative_weight = self._transfer(ranks)
        terms = torch.stack([1.0 - positive_weight, negative_weight]).add(self.epsilon).log().sum(dim=0)
        return -(terms * ranked).mean()

    def _transfer(self, ranks: Tensor) -> Tensor:
        """w of Eq. 10 at ranks in [0, 1]; both of its halves have the same tail, measured from the nearer end."""
        low = ranks < 0.5
        from_end = torch.minimum(ranks, 1.0 - ranks)
        inside = from_end != 0  # at the end itself the slope is 0, or for alpha < 1 infinite
        tail = 0.5 * (2.0 * from_end.masked_fill(~inside, 0.5)) ** self.alpha * inside
        return torch.where(low, tail, 1.0 - tail)


def _standardised(embeddings: Tensor) -> Tensor:
    """The rows (B, D) around 0, their largest entry 1: no rank changes, and squares neither overflow nor cancel."""
    rows = embeddings - embeddings.detach().mean(dim=0)
    scale = rows.detach().abs().max()
    return rows / torch.where(scale == 0, 1.0, scale)


def _decisive_ranks(rows: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Ranks (2, B) of the farthest positive and of the nearest negative among all others, and who has both (B,)."""
    chosen, ranked = _extremes(rows, positives, negatives)
    extremes: Tensor = _ChosenDistances.apply(rows, chosen)
    smallest, largest = extremes.amin(dim=0), extremes.amax(dim=0)
    spread = largest - smallest
    # equal distances differ by their rounding, and rounding has no order
    alike = spread <= 16 * torch.finfo(spread.dtype).eps * largest
    return ((extremes[:2] - smallest) / spread.masked_fill(alike, 1.0)).masked_fill(alike, 0.0), ranked


@torch.no_grad()
def _extremes(rows: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's farthest positive, nearest negative, nearest positive and farthest negative (4, B); who has both (B,).

    One matrix product finds them; only those four of a row are then measured, from the difference itself, which
    is exact for near duplicates and spares the gradient of the product.
    """
    squares = rows.square().sum(dim=1)
    squared = squares[:, None] + squares - 2.0 * rows @ rows.T
    # at least 1 and rising with the distance, and the reverse; multiplied, as filling by a mask is slower
    far = squared - squared.min() + 1.0
    near = far.max() - far + 1.0
    positive, negative = positives.to(rows.dtype), negatives.to(rows.dtype)
    found = [weights.max(dim=1) for weights in (far * positive, near * negative, near * positive, far * negative)]
    return torch.stack([indices for _, indices in found]), (found[0].values > 0) & (found[1].values > 0)


class _ChosenDistances(torch.autograd.Function):
    """Distances (K, B) of rows (B, D) to the rows chosen (K, B); autograd alone would make six more (K, B, D)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, chosen: Tensor) -> Tensor:
        differences = rows.index_select(0, chosen.flatten()).view(*chosen.shape, -1).sub_(rows)
        distances: Tensor = torch.linalg.vector_norm(differences, dim=2)
        ctx.save_for_backward(differences, distances, chosen)
        return distances

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        differences, distances, chosen = ctx.saved_tensors
        slopes = torch.where(distances == 0, 0.0, gradient / distances)
        pulls = differences * slopes[:, :, None]
        total = pulls.sum(dim=0).neg_()
        return total.index_add_(0, chosen.flatten(), pulls.flatten(0, 1)), None
