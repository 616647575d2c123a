"""The hyperbolic contrastive loss, and the Poincare ball that it compares embeddings in."""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.gradients import in_blocks
from dml.ops.pairs import finest
from dml.ops.poincare import check_ball, poincare_distances, to_ball
from dml.ops.precision import full_precision
from dml.runtime.errors import check_number

__all__ = ["HyperbolicContrastiveLoss", "poincare_distances", "to_ball"]


class HyperbolicContrastiveLoss(Loss):
    r"""Pairwise cross entropy in the Poincare ball (Ermolov et al., "Hyperbolic Vision Transformers", 2022), Eq. 3-6.

    x_ca is the a-th of class c's K images in the batch, as a point of the ball (`to_ball`), and d the Poincare
    distance. For each ordered pair a != b of the K, every class is a query::

        l_cab = -log exp(-d(x_ca, x_cb) / T) / Z_cab
        Z_cab = sum_{all c'} exp(-d(x_ca, x_c'b) / T) + sum_{c' != c} exp(-d(x_ca, x_c'a) / T)
        L = mean over classes c of sum_{a != b} l_cab

    With curvature 0, the points lie on the unit sphere and -d is the cosine.

    A query is compared with the a-th and b-th images of the other classes only. For K > 2 the loss therefore depends on
    the order of the images within a class.

    Departures: classes may have different numbers of images. A class without an a-th or b-th image has no such term,
    and adds no such negative.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> round(HyperbolicContrastiveLoss()(embeddings, torch.tensor([0, 0, 1, 1])).item(), 3)
    3.779

    Args:
        temperature: T, divisor of the distances.
        curvature: c, the ball has radius 1 / sqrt(c); 0 is the sphere, for which the paper's temperature is 0.1.
        clip: largest norm of an embedding; longer ones are shortened to it before they are mapped into the ball.
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, temperature: float = 0.2, curvature: float = 0.1, clip: float = 2.3) -> None:
        super().__init__()
        check_number("loss.temperature", temperature, above=0)
        check_ball("loss", curvature, clip)
        self.temperature = temperature
        self.curvature = curvature
        self.clip = clip

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        images = _list_by_class(finest(labels))
        points = to_ball(embeddings, self.curvature, self.clip)
        if self.curvature:
            distances = partial(poincare_distances, items=points, curvature=self.curvature)
            rows, width = range(len(points)), len(points)
            (logits,) = in_blocks(
                lambda block: (distances(points[block]) / -self.temperature,), rows, width, points.device
            )
        else:
            logits = points @ points.T / self.temperature
        total = 0.0 * embeddings.sum()
        for first in range(images.shape[1]):
            for second in range(images.shape[1]):
                if first != second:
                    total = total + _sum_terms(logits, images[:, first], images[:, second])
        return total / len(images)


def _list_by_class(labels: Tensor) -> Tensor:
    """List the rows of each class in their order. (B,) -> (C, K) row indices, with -1 behind a class's last one"""
    same = labels[:, None] == labels
    place = same.tril(diagonal=-1).sum(dim=1)
    classes: Tensor = torch.unique(labels, return_inverse=True)[1]
    images = classes.new_full((int(classes.max()) + 1, int(place.max()) + 1), -1)
    images[classes, place] = torch.arange(len(labels), device=labels.device)
    return images


def _sum_terms(logits: Tensor, anchors: Tensor, positives: Tensor) -> Tensor:
    """Sum the cross entropies of one ordered pair over the classes.

    Args:
        logits: (B, B) logits of all rows.
        anchors: (C,) row index of each class's query; -1 for none.
        positives: (C,) row index of the image that the query has to find; -1 for none.
    """
    has_both = (anchors >= 0) & (positives >= 0)
    anchor_rows = anchors[has_both]
    same_place, other_place = anchors[anchors >= 0], positives[positives >= 0]
    columns = torch.cat([other_place, same_place])
    chosen = logits[anchor_rows][:, columns].masked_fill(anchor_rows[:, None] == columns, -torch.inf)
    return (chosen.logsumexp(dim=1) - logits[anchor_rows, positives[has_both]]).sum()
