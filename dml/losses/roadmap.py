from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.pairs import finest, pair_masks
from dml.runtime.errors import check_number


class CalibrationLoss(Loss):
    r"""Calibration loss of ROADMAP (Ramzi et al., 2021): bounds the cosines of positive and of negative pairs.

    L = mean over violating positive pairs of (b+ - s_ij) + mean over violating negative pairs of (s_ij - b-)

    s_ij is the cosine of a pair. A positive pair violates its bound if s_ij < b+, a negative pair if s_ij > b-. The
    embeddings are L2-normalized here.

    ROADMAP is the sum of this loss and of ``SmoothHierarchicalAPLoss`` at the finest level, both with weight 1
    (conf/loss/roadmap.yaml). The sources of this project state the bounds and the weights alone. Two choices are
    readings of them: the means are over the violating pairs of the batch, as in the authors' release, and the smooth
    rank has the constants of HAPPIER.

    Departure: a batch without positives gives 0, however near its negatives are.

    >>> import torch
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> round(CalibrationLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 3)
    0.1

    Args:
        positive_bound: least cosine of a positive pair without a penalty, b+.
        negative_bound: greatest cosine of a negative pair without a penalty, b-.
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, positive_bound: float = 0.9, negative_bound: float = 0.6) -> None:
        super().__init__()
        check_number("loss.positive_bound", positive_bound, least=-1, most=1)
        check_number("loss.negative_bound", negative_bound, least=-1, most=1)
        self.positive_bound = positive_bound
        self.negative_bound = negative_bound

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        unit = F.normalize(embeddings, dim=1)
        cosines = unit @ unit.T
        positives, negatives = pair_masks(finest(labels))
        too_far = _violating_mean(self.positive_bound - cosines, positives)
        too_near = _violating_mean(cosines - self.negative_bound, negatives)
        return (too_far + too_near) * positives.any()


def _violating_mean(violations: Tensor, pairs: Tensor) -> Tensor:
    """Compute the mean of the violations (B, B) > 0 among ``pairs`` (B, B); 0 if there are none."""
    violating = pairs & (violations > 0)
    return (violations * violating).sum() / violating.sum().clamp(min=1)
