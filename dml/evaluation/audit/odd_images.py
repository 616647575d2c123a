"""Images that can't be read, or are unlike all others."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dml.data.prepared.verification import CheckedImage
from dml.data.table import ImageTable
from dml.evaluation.audit.findings import BROKEN_IMAGE, ODD_IMAGE, AuditedImages, Finding
from dml.evaluation.audit.settings import AuditSettings

NEAREST = 5
"""Number of neighbors by which the distance of an image to all others is measured."""
NORMAL = 1.4826
"""The standard deviation of a normal distribution in median absolute deviations."""
SHARE_OF_MEDIAN = 0.25
"""An image whose shorter side is below this share of the median shorter side is odd."""


def report_broken_images(table: ImageTable, checked: Mapping[str, CheckedImage]) -> list[Finding]:
    """Describe the images that are missing or can't be decoded.

    Args:
        table: table of the data set.
        checked: result of the check of each image, by path.
    """
    findings = []
    for path, label in dict(zip(table.paths.tolist(), table.labels[:, 0].tolist(), strict=True)).items():
        if checked[path].error:
            findings.append(Finding(BROKEN_IMAGE, 1.0, checked[path].error, path=path, label=table.name_class(label)))
    return findings


def report_odd_images(
    images: AuditedImages, similarities: NDArray[np.float32], settings: AuditSettings
) -> list[Finding]:
    """Find images of one color, tiny or very long images, and images that are far from all others.

    Args:
        images: the images of the audit.
        similarities: (N, k) cosine similarities of the nearest neighbors of each image, the highest first.
        settings: the thresholds of the audit.
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
