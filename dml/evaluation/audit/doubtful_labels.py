"""Images whose neighbors disagree with their label."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log10

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dml.data.table import UNKNOWN
from dml.evaluation.audit.findings import DOUBTFUL_LABEL, AuditedImages, Finding
from dml.evaluation.audit.settings import AuditSettings
from dml.evaluation.raw_features import IMAGES_PER_COMPONENT

BLOCK_VALUES = 1 << 24
"""Number of similarities that are in memory at a time."""
SHOWN_NEIGHBORS = 8
TINY = 1e-30
NO_IMAGE = -1.0
"""The similarity to a class that has no image left to compare with."""


@dataclass(frozen=True)
class LabelProbabilities:
    """How well the labels of images agree with their neighbors.

    Args:
        rows: (M,) rows of the images that have a probability: those whose class has another image.
        quality: (M,) probability of the image's own class, out of fold.
        suggested: (M,) label of the most probable other class.
        classes: number of classes.
        is_doubtful: (M,) whether the label is doubtful.
    """

    rows: NDArray[np.int64]
    quality: NDArray[np.float64]
    suggested: NDArray[np.int64]
    classes: int
    is_doubtful: NDArray[np.bool_]


def estimate_label_probabilities(
    images: AuditedImages, copies: Sequence[Sequence[int]], settings: AuditSettings
) -> LabelProbabilities:
    """Estimate how probable the label of each image is by its nearest neighbors, without itself and its copies.

    The similarity of an image to a class is the mean cosine to its nearest images of the class. A softmax makes
    probabilities of them. A label is doubtful if its class is less probable than one drawn by chance; with fewer images
    than the principal components need, whose similarities differ more by chance, if it is less probable than that share
    of chance.

    Args:
        images: the images of the audit.
        copies: rows of the copies of each image, which don't count as neighbors.
        settings: the thresholds of the audit.
    """
    labels = images.labels
    rows = _find_testable(labels, copies)
    classes = np.unique(labels[rows])
    own_classes = np.searchsorted(classes, labels[rows])
    quality, suggested = np.ones(len(rows)), labels[rows]
    for part, probabilities in (
        iterate_probabilities(images, rows, classes, copies, settings) if len(classes) > 1 else ()
    ):
        quality[part] = probabilities[np.arange(len(probabilities)), own_classes[part]]
        probabilities[np.arange(len(probabilities)), own_classes[part]] = -1
        suggested[part] = classes[probabilities.argmax(axis=1)]
    share_of_chance = min(1, len(labels) / (IMAGES_PER_COMPONENT * settings.components))
    return LabelProbabilities(rows, quality, suggested, len(classes), quality * len(classes) < share_of_chance)


def _find_testable(labels: NDArray[np.int64], copies: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return the rows of the images whose class has an image that is neither the image itself nor one of its copies."""
    is_known = labels != UNKNOWN
    other_counts = np.where(is_known, np.bincount(labels[is_known])[np.maximum(labels, 0)] - 1, 0)
    for row, rows in enumerate(copies):
        other_counts[row] -= np.count_nonzero(labels[[copy for copy in rows if copy != row]] == labels[row])
    return np.flatnonzero(is_known & (other_counts > 0)).astype(np.int64)


def iterate_probabilities(
    images: AuditedImages,
    rows: NDArray[np.int64],
    classes: NDArray[np.int64],
    copies: Sequence[Sequence[int]],
    settings: AuditSettings,
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield parts of the rows and the probabilities (B, C) of the classes for each image of a part, out of fold.

    Args:
        images: the images of the audit.
        rows: (M,) rows of the images whose labels are tested.
        classes: (C,) labels of the classes, rising.
        copies: rows of the copies of each image, which don't count as neighbors.
        settings: number of nearest images of each class, and the temperature of the softmax.
    """
    members_by_size = _group_by_size(images.labels, classes)
    block = max(1, BLOCK_VALUES // len(images.labels))
    for start in range(0, len(rows), block):
        part = slice(start, min(start + block, len(rows)))
        similarities = images.embeddings[rows[part]] @ images.embeddings.T
        for i, row in enumerate(rows[part].tolist()):
            similarities[i, [row, *copies[row]]] = -torch.inf
        by_class = torch.empty(len(similarities), len(classes), dtype=torch.float64)
        for numbers, members in members_by_size:
            nearest = similarities[:, members].topk(min(settings.images_per_class, members.shape[1]), dim=2).values
            by_class[:, numbers] = _average_finite(nearest).double()
        yield part, torch.softmax(by_class / settings.temperature, dim=1).numpy()


def _group_by_size(labels: NDArray[np.int64], classes: NDArray[np.int64]) -> list[tuple[Tensor, Tensor]]:
    """Return for each size of classes their numbers (K,) and the rows of their images (K, size)."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], classes)
    sizes = np.searchsorted(labels[order], classes, side="right") - starts
    groups = []
    for size in np.unique(sizes).tolist():
        numbers = np.flatnonzero(sizes == size)
        members = order[starts[numbers][:, None] + np.arange(size)]
        groups.append((torch.from_numpy(numbers), torch.from_numpy(members)))
    return groups


def _average_finite(values: Tensor) -> Tensor:
    """Average the finite values of the last dimension; `NO_IMAGE` where there are none."""
    is_finite = values.isfinite()
    total = torch.where(is_finite, values, 0.0).sum(dim=-1)
    return torch.where(is_finite.any(dim=-1), total / is_finite.sum(dim=-1).clamp(min=1), NO_IMAGE)


def report_labels(
    images: AuditedImages, probabilities: LabelProbabilities, neighbors: NDArray[np.int64]
) -> list[Finding]:
    """Describe the doubtful labels, the least probable first; the score counts powers of ten below chance.

    Args:
        images: the images of the audit.
        probabilities: how well the labels agree with their neighbors.
        neighbors: (N, k) rows of the nearest neighbors of each image, without its copies; -1 where there are fewer.
    """
    findings = []
    for i in np.flatnonzero(probabilities.is_doubtful).tolist():
        row, suggested = int(probabilities.rows[i]), int(probabilities.suggested[i])
        shown = [neighbor for neighbor in neighbors[row].tolist() if neighbor >= 0][:SHOWN_NEIGHBORS]
        findings.append(
            Finding(
                issue=DOUBTFUL_LABEL,
                score=-log10(max(float(probabilities.quality[i]), TINY) * probabilities.classes),
                remark=f"{probabilities.quality[i] * probabilities.classes:.1%} as probable as by chance",
                path=str(images.table.paths[row]),
                label=images.name_class(images.labels[row]),
                other_label=images.name_class(suggested),
                pictures=((row,), tuple(shown)),
            )
        )
    return sorted(findings, key=lambda finding: -finding.score)
