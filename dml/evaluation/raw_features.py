"""Features that no training has changed: as they are, after a PCA, whitened by it, and spread for an audit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES
from dml.evaluation.names import choose_first_metric

Metrics = dict[str, float]

SMALLEST_SHARE = 1e-6
"""The variance of a component, as a share of the largest one, below which float32 features hold rounding alone."""
HIGH_RECALL = 0.95
"""The recall@1 from which on the verdict says that little is left to gain."""


@dataclass(frozen=True)
class PrincipalComponents:
    """The components of some features along which they vary most.

    Args:
        mean: (F,) mean of the features, float64.
        directions: (D, F) unit vectors, that of the largest variance first, float64.
        deviations: (D,) standard deviation of the features along each direction, float64.
    """

    mean: Tensor
    directions: Tensor
    deviations: Tensor

    @classmethod
    def fit(cls, features: Tensor, size: int) -> "PrincipalComponents":
        """Find the components of features (N, F), of which there are at least two.

        Directions along which the features don't vary are left out, so that the number of components D may be below
        ``size``.
        """
        rows = features.double()
        mean = rows.mean(dim=0)
        centered = rows - mean
        if len(rows) < rows.shape[1]:  # then far faster than with the large matrix of covariances
            deviations, directions = torch.linalg.svd(centered, full_matrices=False)[1:]
            variances = deviations.square() / (len(rows) - 1)
        else:
            variances, directions = torch.linalg.eigh(centered.T @ centered / (len(rows) - 1))
            variances, directions = variances.flip(0), directions.T.flip(0)
        variances, directions = variances[:size], directions[:size]
        varies = variances > SMALLEST_SHARE * variances[0]
        return cls(mean, directions[varies], variances[varies].sqrt())

    def project(self, features: Tensor, *, whiten: bool) -> Tensor:
        """Project features (N, F) onto the components -> (N, D) float32; whitened, each has variance 1 in the fit."""
        projected = (features.double() - self.mean) @ self.directions.T
        return (projected / self.deviations if whiten else projected).float()


def evaluate_projections(train: Tensor, test: Tensor, evaluator: Evaluator, size: int) -> dict[str, Metrics]:
    """Compute the metrics of features as they are, projected onto their components, and whitened -> {name: metrics}.

    Args:
        train: (M, F) L2-normalized features of the training images; the PCA is fitted on them. With fewer than two
            images, or images that are all alike, there is none.
        test: (N, F) L2-normalized features of the rows of the evaluator's table.
        evaluator: evaluator of the test images.
        size: largest number of components.
    """
    results = {"raw": evaluator(test)}
    if len(train) < 2:
        return results
    components = PrincipalComponents.fit(train, size)
    if len(components.deviations):
        name = f"PCA {len(components.deviations)}"
        results[name] = evaluator(components.project(test, whiten=False))
        results[f"{name}, whitened"] = evaluator(components.project(test, whiten=True))
    return results


def describe_best(results: Mapping[str, Metrics], queries: int, levels: Sequence[str] = ("class",)) -> str:
    """Describe in one sentence which features find most, and what a training can gain over them.

    Args:
        results: metrics by the name of the features; the first of equal ones is the best.
        queries: number of queries of the test.
        levels: names of the levels; of several, the sentence is about the finest.
    """
    metric = choose_first_metric(next(iter(results.values()))) or ""
    best = max(results, key=lambda name: results[name][metric])
    level = metric.rpartition("/")[0]
    counted = queries - int(results[best].get(f"{level}/{QUERIES_WITHOUT_POSITIVES}", 0))
    recall = results[best][metric]
    missed = round((1 - recall) * counted)
    gain = "little is left to gain by a training" if recall >= HIGH_RECALL else "a training can gain these at most"
    place = f" of {levels[0]}" if len(levels) > 1 else ""
    return (
        f"{best} finds most: recall@1{place} is {recall:.1%} of {counted:,} queries. "
        f"The nearest image of {missed:,} is of another class; {gain}."
    )


IMAGES_PER_COMPONENT = 10
"""The number of images that a principal component needs, so that few images don't all become strangers."""


def spread_embeddings(features: Tensor, components: int) -> Tensor:
    """Project features onto their principal components, and divide each by the square root of its deviation.

    What all images have in common, and the few directions along which they vary most, then count for less. The audit
    finds more swapped labels so than with the features as they are: an average precision of 0.93, not 0.85, where 1 %
    of the labels of grocery photographs were swapped.

    Args:
        features: (N, F) L2-normalized features of the images, N at least 2.
        components: largest number of principal components.

    Returns:
        (N, D) L2-normalized embeddings; the features themselves if these are all alike.
    """
    size = max(2, min(components, len(features) // IMAGES_PER_COMPONENT))
    fitted = PrincipalComponents.fit(features, size)
    if not len(fitted.deviations):
        return features
    return F.normalize(fitted.project(features, whiten=False) / fitted.deviations.sqrt().float(), dim=1)
