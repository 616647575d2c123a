from typing import ClassVar

import torch
import torch.nn.functional as F
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
        positives, negatives = pair_masks(finest(labels))
        positive_rank, negative_rank = _decisive_ranks(_standardised(embeddings), positives, negatives)
        positive_similarity = 1.0 - self._transfer(positive_rank)
        negative_similarity = 1.0 - self._transfer(negative_rank)
        terms = (positive_similarity + self.epsilon).log() + (1.0 - negative_similarity + self.epsilon).log()
        return -(terms * (positives.any(dim=1) & negatives.any(dim=1))).mean()

    def _transfer(self, ranks: Tensor) -> Tensor:
        """w of Eq. 10 at ranks in [0, 1]; both of its halves have the same tail, measured from the nearer end."""
        low = ranks < 0.5
        from_end = torch.where(low, ranks, 1.0 - ranks)
        inside = from_end != 0  # at the end itself the slope is 0, or for alpha < 1 infinite
        tail = 0.5 * (2.0 * torch.where(inside, from_end, 0.5)) ** self.alpha * inside
        return torch.where(low, tail, 1.0 - tail)


def _standardised(embeddings: Tensor) -> Tensor:
    """The rows (B, D) around 0, their largest entry 1: no rank changes, and squares neither overflow nor cancel."""
    rows = embeddings - embeddings.detach().mean(dim=0)
    scale = rows.detach().abs().max()
    return rows / torch.where(scale == 0, 1.0, scale)


def _decisive_ranks(rows: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Ranks (B,) of the farthest positive and of the nearest negative among all others; any number without both."""
    farthest_positive, nearest_negative, nearest_positive, farthest_negative = _extremes(rows, positives, negatives)
    extremes = torch.stack([farthest_positive, nearest_negative, nearest_positive, farthest_negative])
    smallest, largest = extremes.amin(dim=0), extremes.amax(dim=0)
    spread = largest - smallest
    # equal distances differ by their rounding, and rounding has no order
    alike = spread <= 16 * torch.finfo(spread.dtype).eps * largest
    spread = torch.where(alike, 1.0, spread)

    def rank(distances: Tensor) -> Tensor:
        return torch.where(alike, 0.0, (distances - smallest) / spread)

    return rank(farthest_positive), rank(nearest_negative)


def _extremes(rows: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
    """Distances (B,) to the farthest positive, the nearest negative, the nearest positive, the farthest negative.

    One matrix product finds them; only those four of a row are then measured, from the difference itself, which
    is exact for near duplicates and spares the gradient of the product.
    """
    with torch.no_grad():
        squares = rows.square().sum(dim=1)
        squared = squares[:, None] + squares - 2.0 * rows @ rows.T
        chosen = torch.stack(
            [
                squared.masked_fill(~positives, -torch.inf).argmax(dim=1),
                squared.masked_fill(~negatives, torch.inf).argmin(dim=1),
                squared.masked_fill(~positives, torch.inf).argmin(dim=1),
                squared.masked_fill(~negatives, -torch.inf).argmax(dim=1),
            ]
        )
    # an embedding lookup, as the gradient of indexing is slower
    distances: Tensor = torch.linalg.vector_norm(F.embedding(chosen, rows) - rows, dim=2)
    return distances.unbind()
