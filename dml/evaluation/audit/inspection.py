"""The audit of a data set: all that its images, their embeddings and their labels tell about its faults."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dml.data.prepared.verification import CheckedImage
from dml.data.table import ImageTable
from dml.evaluation.audit.findings import BROKEN_IMAGE, ODD_IMAGE, AuditedImages, AuditSettings, Finding
from dml.evaluation.audit.labels import (
    estimate_label_probabilities,
    report_divided_classes,
    report_labels,
    report_mixed_classes,
    report_small_classes,
)
from dml.evaluation.audit.near_duplicates import find_duplicate_pairs, report_duplicates
from dml.retrieval.search import nearest_neighbors

SPARE = 10
"""Number of neighbors that are searched for beyond those needed, in the place of copies."""


def audit_images(
    images: AuditedImages, settings: AuditSettings, class_sizes: Mapping[int, int] | None = None
) -> list[Finding]:
    """Look for all kinds of faults in two images or more that can be read -> findings, ranked within each kind.

    ``class_sizes`` is the number of images of each class if the images are a part of the data set; None counts them.
    """
    pairs = find_duplicate_pairs(images, settings)
    copies = pairs.list_copies(len(images.table))
    neighbors, similarities = find_neighbors(images, settings, copies)
    return [
        *report_duplicates(images, pairs),
        *report_labels(images, estimate_label_probabilities(images, copies, settings), neighbors),
        *report_mixed_classes(images, neighbors, copies, settings),
        *report_divided_classes(images, settings),
        *report_small_classes(images, settings, class_sizes),
        *report_odd_images(images, similarities, settings),
    ]


def find_neighbors(
    images: AuditedImages, settings: AuditSettings, copies: Sequence[Sequence[int]] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find the nearest neighbors of each of two images or more, without their copies.

    Returns:
        Rows (N, neighbors) of the neighbors, nearest first and filled up with -1, and the similarities (N, k) of all
        neighbors, copies among them.
    """
    scores, rows = nearest_neighbors(images.embeddings, settings.neighbors + SPARE)
    neighbors = _leave_out_copies(rows.numpy(), copies or [()] * len(images.table))
    return neighbors[:, : settings.neighbors], scores.numpy()


def _leave_out_copies(neighbors: NDArray[np.int64], copies: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Move the neighbors (N, k) of each image that aren't its copies to the front, and fill up with -1."""
    moved = np.full_like(neighbors, -1)
    for row, rows in enumerate(neighbors):
        remaining = rows[~np.isin(rows, copies[row])] if len(copies[row]) > 1 else rows
        moved[row, : len(remaining)] = remaining
    return moved


NEAREST = 5
"""Number of neighbors by which the distance of an image to all others is measured."""
NORMAL = 1.4826
"""The standard deviation of a normal distribution in median absolute deviations."""
SHARE_OF_MEDIAN = 0.25
"""An image whose shorter side is below this share of the median shorter side is odd."""


def report_broken_images(table: ImageTable, checked: Mapping[str, CheckedImage]) -> list[Finding]:
    """Describe the images that are missing or can't be decoded, by the check of each path."""
    findings = []
    for path, label in dict(zip(table.paths.tolist(), table.labels[:, 0].tolist(), strict=True)).items():
        if checked[path].error:
            findings.append(Finding(BROKEN_IMAGE, 1.0, checked[path].error, path=path, label=table.name_class(label)))
    return findings


def report_odd_images(
    images: AuditedImages, similarities: NDArray[np.float32], settings: AuditSettings
) -> list[Finding]:
    """Find images of one color, tiny or very long images, and images that are far from all others.

    ``similarities`` (N, k) are the cosine similarities of the nearest neighbors of each image, the highest first.
    """
    isolation = _measure_isolation(similarities[:, :NEAREST].mean(axis=1))
    shorter, longer = images.sizes.min(axis=1), images.sizes.max(axis=1)
    smallest = min(settings.smallest_side, float(np.median(shorter)))
    ratios = longer / np.maximum(shorter, 1)
    findings = []
    for row in range(len(images.table)):
        reasons: dict[str, float] = {}
        if images.contrasts[row] < settings.smallest_contrast:
            reasons["of one color"] = 1.0
        if shorter[row] < max(smallest, SHARE_OF_MEDIAN * float(np.median(shorter))):
            reasons[f"only {images.sizes[row, 0]} x {images.sizes[row, 1]} pixels"] = 0.9
        if ratios[row] > settings.largest_ratio:
            reasons[f"{ratios[row]:.1f} times as long as wide"] = 0.8
        if isolation[row] > settings.isolation:
            reasons["far from all other images"] = min(0.7, isolation[row] / 20)
        if reasons:
            findings.append(
                Finding(
                    issue=ODD_IMAGE,
                    score=max(reasons.values()),
                    remark="; ".join(reasons),
                    path=str(images.table.paths[row]),
                    label=images.name_class(images.labels[row]),
                    pictures=((row,),),
                )
            )
    return sorted(findings, key=lambda finding: -finding.score)


def _measure_isolation(similarities: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return by how many robust standard deviations each mean similarity (N,) is below the median one."""
    median = np.median(similarities)
    deviation = NORMAL * np.median(np.abs(similarities - median))
    return np.asarray((median - similarities) / max(float(deviation), 1e-6), dtype=np.float64)
