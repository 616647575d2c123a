"""What a network finds before its training: its features as they are, after a PCA, or spread, and its neighbors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from dml.data.table import UNKNOWN, ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.items import Labels, Positives, check_items
from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES, MetricConfig
from dml.evaluation.names import choose_first_metric
from dml.metrics.binary import positive_ranks, recall_at_k
from dml.retrieval.rows import Embeddings, UnitEmbeddings
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.reading import DamageError, check_zip

Metrics = dict[str, float]

SMALLEST_SHARE = 1e-6
"""The variance of a component, as a share of the largest one, below which float32 features hold rounding alone."""

HIGH_RECALL = 0.95
"""The recall@1 from which on the verdict says that little is left to gain."""

FOLDS, FEWEST_CLASSES, MOST_CLASSES = 4, 8, 400
"""How many groups of classes `hold_out_classes` holds out in turn, and how many classes it needs and takes."""

SMOOTHING = 0.9
"""The share of the unit matrix in the covariance of `normalize_within_classes`, which has more entries than images."""

COMPONENTS, IMAGES_PER_COMPONENT = 320, 10
"""The number of principal components by which `spread_embeddings` compares images, and of images that each needs, so
that few images don't all become strangers.
"""

BLOCK_SIZE = 2048
"""The number of queries that are ranked together."""


@dataclass(frozen=True)
class PrincipalComponents:
    """The components of some features along which they vary most."""

    mean: Tensor  # (F,) float64
    directions: Tensor  # (D, F) float64 unit vectors, that of the largest variance first
    deviations: Tensor  # (D,) float64, standard deviation of the features along each direction

    @classmethod
    def fit(cls, features: Tensor, size: int) -> "PrincipalComponents":
        """Find at most ``size`` components of features (N, F), N >= 2, those along which the features vary."""
        rows = features.double()
        mean = rows.mean(dim=0)
        sums, directions = _decompose(rows - mean)
        variances, directions = sums[:size] / (len(rows) - 1), directions[:size]
        varies = variances > SMALLEST_SHARE * variances[0]
        return cls(mean, directions[varies], variances[varies].sqrt())

    def project(self, features: Tensor, *, whiten: bool) -> Tensor:
        """Project features (N, F) onto the components -> (N, D) float32; whitened, each has variance 1 in the fit."""
        projected = (features.double() - self.mean) @ self.directions.T
        return (projected / self.deviations if whiten else projected).float()


def _decompose(centered: Tensor) -> tuple[Tensor, Tensor]:
    """Find the directions of centered rows (N, F) -> sums of squares (D,), falling, and unit vectors (D, F)."""
    if len(centered) < centered.shape[1]:  # then far faster than with the large matrix of covariances
        deviations, directions = torch.linalg.svd(centered, full_matrices=False)[1:]
        return deviations.square(), directions
    sums, columns = torch.linalg.eigh(centered.T @ centered)
    return sums.flip(0), columns.T.flip(0)


def evaluate_projections(train: Tensor, test: Tensor, evaluator: Evaluator, size: int) -> dict[str, Metrics]:
    """Compute the metrics of features as they are, projected onto their components, and whitened -> {name: metrics}.

    The PCA is fitted on the L2-normalized features (M, F) of the training images. With fewer than two images, or images
    that are all alike, there is none.
    """
    results = {"raw": evaluator(test)}
    if len(train) >= 2 and len((components := PrincipalComponents.fit(train, size)).deviations):
        name = f"PCA {len(components.deviations)}"
        results[name] = evaluator(components.project(test, whiten=False))
        results[f"{name}, whitened"] = evaluator(components.project(test, whiten=True))
    return results


def hold_out_classes(labels: npt.NDArray[np.int64]) -> list[npt.NDArray[np.bool_]]:
    """Divide classes with two or more images, at most `MOST_CLASSES`, into groups -> (N,) bool for each."""
    classes, counts = np.unique(labels[labels != UNKNOWN], return_counts=True)
    drawn = np.random.default_rng(0).permutation(classes[counts > 1])[:MOST_CLASSES]
    return [np.isin(labels, group) for group in np.array_split(drawn, FOLDS) if len(drawn) >= FEWEST_CLASSES]


def normalize_within_classes(features: Tensor, labels: npt.NDArray[np.int64], unknown_features: Tensor) -> Tensor:
    """Map features (M, F) of unknown classes so that those of known classes would vary alike in all directions.

    Within-class covariance normalization (Hatch et al., Within-class covariance normalization for SVM-based speaker
    recognition, 2006): x is mapped to (x - m) A with A A^T = W^-1, where m is the mean of all features (N, F), and W
    their covariance around the means of their classes (N,), smoothed with the unit matrix times their mean variance,
    whose share is `SMOOTHING`.
    """
    rows = features.double()
    classes = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    sums = rows.new_zeros(int(classes.max()) + 1, rows.shape[1]).index_add_(0, classes, rows)
    centered = rows - (sums / classes.bincount()[:, None])[classes]
    squares, directions = _decompose(centered)
    added = SMOOTHING * centered.square().mean()  # to the variance in every direction, also where the rows have none
    scales = (added + (1 - SMOOTHING) * squares / len(rows)).clamp(min=1e-12).rsqrt()
    scale_elsewhere = added.clamp(min=1e-12).rsqrt()
    shifted = unknown_features - rows.mean(dim=0)
    mapped = scale_elsewhere * shifted + (shifted @ directions.T * (scales - scale_elsewhere)) @ directions
    return mapped.float()


def measure_gains(table: ImageTable, groups: Sequence[npt.NDArray[np.bool_]], features: Tensor) -> list[float]:
    """Measure by how much a linear map that knows some classes raises the MAP@R of others -> (C,), one a class."""
    labels, gains = table.labels[:, 0], list[float]()
    for is_held in groups:
        held = np.flatnonzero(is_held)
        tested = replace(table.take(held), split=np.full(len(held), "test"))
        evaluator = Evaluator(tested, MetricConfig(metrics=("map@r",), clustering=False))
        mapped = normalize_within_classes(features[~is_held], labels[~is_held], features[held])
        before, after = (evaluator.evaluate(vectors).lists[0] for vectors in (features[held], mapped))
        changes = after.values["level0/map@r"] - before.values["level0/map@r"]
        classes = np.where(np.isnan(changes), UNKNOWN, tested.labels[before.queries, 0])
        gains += [float(changes[classes == label].mean()) for label in np.setdiff1d(classes, UNKNOWN)]
    return gains


def describe_best(results: Mapping[str, Metrics], queries: int, levels: Sequence[str] = ("class",)) -> str:
    """Describe in one sentence which features find most at the finest level, and what a training can gain."""
    metric = choose_first_metric(next(iter(results.values()))) or ""
    best = max(results, key=lambda name: results[name][metric])
    recall = results[best][metric]
    without = f"{metric.rpartition('/')[0]}/{QUERIES_WITHOUT_POSITIVES}"
    counted = queries - int(results[best].get(without, 0))
    gain = "little is left to gain by a training" if recall >= HIGH_RECALL else "a training can gain these at most"
    return (
        f"{best} finds most: recall@1{f' of {levels[0]}' * (len(levels) > 1)} is {recall:.1%} of {counted:,} queries. "
        f"The nearest image of {round((1 - recall) * counted):,} is of another class; {gain}."
    )


def spread_embeddings(features: Tensor) -> Tensor:
    """Project features onto their principal components, and divide each by the square root of its deviation.

    What all images have in common, and the few directions along which they vary most, then count for less. More swapped
    labels are found so than with the features as they are: an average precision of 0.93, not 0.85, where 1 % of the
    labels of grocery photographs were swapped.

    L2-normalized features (N, F), N >= 2 -> L2-normalized embeddings (N, D); the features if these are all alike.
    """
    fitted = PrincipalComponents.fit(features, max(2, min(COMPONENTS, len(features) // IMAGES_PER_COMPONENT)))
    if not len(fitted.deviations):
        return features
    return F.normalize(fitted.project(features, whiten=False) / fitted.deviations.sqrt().float(), dim=1)


class FixedNeighbors(NamedTuple):
    """The nearest images (N, K) of each test image by a network before its training, as indices among ``rows`` (N,)."""

    rows: npt.NDArray[np.int64]
    neighbors: npt.NDArray[np.int64]

    def write(self, path: Path) -> None:
        """Write the neighbors to a file."""
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, rows=self.rows, neighbors=self.neighbors)

    @classmethod
    def read(cls, path: Path) -> "FixedNeighbors":
        """Read what `write` wrote."""
        try:
            check_zip(path)
            with np.load(path) as arrays:
                return cls(arrays["rows"], arrays["neighbors"])
        except (DamageError, KeyError, ValueError) as error:
            line = f"{path}: damaged ({error}); evaluation.fixed_neighbors=null tests without it"
            raise InputError(line) from error


def recall_among(
    embeddings: Embeddings | UnitEmbeddings, labels: Labels, neighbors: Tensor, recall_at: Sequence[int] = (1, 2, 4, 8)
) -> dict[str, float]:
    """Compute recall@k of rankings that hold only a few items (N, K), such as the query's neighbors by another network.

    In the LNS thesis (Table 3.3) this shows whether a network improves the order within a neighborhood, or finds items
    outside of it. Items are ranked by cosine similarity, ties by index. The mean is over the queries with a positive
    among all N items; a query without a positive among its K items counts as 0, and a k above K counts all K items.
    """
    items = check_items(embeddings, labels, "query")
    rows, columns = items.embeddings.cpu(), torch.from_numpy(items.labels)
    blocks = []
    for start in range(0, len(neighbors), BLOCK_SIZE):
        block = neighbors[start : start + BLOCK_SIZE].sort(dim=1).values
        cosines = torch.einsum("bd,bkd->bk", rows[start : start + len(block)], rows[block])
        blocks.append(block.gather(1, cosines.argsort(dim=1, descending=True, stable=True)))
    nearest_first, positives = torch.cat(blocks), Positives(items.labels, None)
    recalls: dict[str, float] = {}
    for level, column in enumerate(columns.unbind(1)):
        ranks = positive_ranks(column[:, None] == column[nearest_first])
        counted = torch.from_numpy(positives.count(level) > 0)
        if not counted.any():
            raise InputError(f"level{level}: none of the {len(rows)} queries has a positive")
        recalls |= {f"level{level}/recall@{k}": float(recall_at_k(ranks, k)[counted].mean()) for k in recall_at}
    return recalls
