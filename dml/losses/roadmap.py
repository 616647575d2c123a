from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from dml.ops.pairs import finest, pair_masks
from dml.ops.precision import full_precision


class CalibrationLoss(nn.Module):
    r"""Calibration loss of ROADMAP (Ramzi et al., 2021), the half that isn't the smooth AP: absolute bounds of cosines.

    L = mean over violating positive pairs of (b+ - s_ij) + mean over violating negative pairs of (s_ij - b-)

    A positive pair violates at s_ij < b+, a negative one at s_ij > b-; the embeddings are L2-normalised here.

    ROADMAP is this plus ``SmoothHierarchicalAPLoss`` at the finest level, where Hrank / rel is the rank among the
    positives, with weights 1 + 1 (conf/loss/roadmap.yaml). Of the two, this project's sources state the bounds and
    the weights only. That the mean is over the batch's pairs that violate, as in the release that these weights
    are of, and that the smooth rank has HAPPIER's constants, are readings.

    Departure: a batch without positives adds 0, however near its negatives.

    Args:
        positive_bound: b+, the least cosine of a positive pair.
        negative_bound: b-, the greatest of a negative pair.
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, positive_bound: float = 0.9, negative_bound: float = 0.6) -> None:
        super().__init__()
        self.positive_bound = positive_bound
        self.negative_bound = negative_bound

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        unit = F.normalize(embeddings, dim=1)
        cosines = unit @ unit.T
        positives, negatives = pair_masks(finest(labels))
        too_far = _violating_mean(self.positive_bound - cosines, positives)
        too_near = _violating_mean(cosines - self.negative_bound, negatives)
        return (too_far + too_near) * positives.any()


def _violating_mean(violations: Tensor, pairs: Tensor) -> Tensor:
    """The mean of the violations (B, B) > 0 among ``pairs``; 0 if there are none."""
    violating = pairs & (violations > 0)
    return (violations * violating).sum() / violating.sum().clamp(min=1)
