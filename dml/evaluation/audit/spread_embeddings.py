"""Embeddings in which the images of a data set are told apart better than by a network's own features."""

import torch.nn.functional as F
from torch import Tensor

from dml.evaluation.raw_features import PrincipalComponents

IMAGES_PER_COMPONENT = 10
"""The number of images that a principal component needs, so that few images don't all become strangers."""


def spread_embeddings(features: Tensor, components: int) -> Tensor:
    """Project features onto their principal components, and divide each by the square root of its deviation.

    What all images have in common, and the few directions along which they vary most, then count for less. The audit
    finds more swapped labels so than with the features as they are (docs/audit.md).

    Args:
        features: (N, F) L2-normalised features of the images, N at least 2.
        components: largest number of principal components.

    Returns:
        (N, D) L2-normalised embeddings; the features themselves if these are all alike.
    """
    size = max(2, min(components, len(features) // IMAGES_PER_COMPONENT))
    fitted = PrincipalComponents.fit(features, size)
    if not len(fitted.deviations):
        return features
    return F.normalize(fitted.project(features, whiten=False) / fitted.deviations.sqrt().float(), dim=1)
