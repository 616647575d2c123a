"""The audit of a data set: all that its images, their embeddings and their labels tell about its faults."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dml.evaluation.audit.class_relations import report_divided_classes, report_mixed_classes, report_small_classes
from dml.evaluation.audit.doubtful_labels import estimate_label_probabilities, report_labels
from dml.evaluation.audit.findings import AuditedImages, Finding
from dml.evaluation.audit.near_duplicates import find_duplicate_pairs, report_duplicates
from dml.evaluation.audit.odd_images import report_odd_images
from dml.evaluation.audit.settings import AuditSettings
from dml.retrieval.search import nearest_neighbors

SPARE = 10
"""Number of neighbors that are searched for beyond those needed, in the place of copies."""


def audit_images(
    images: AuditedImages, settings: AuditSettings, class_sizes: Mapping[int, int] | None = None
) -> list[Finding]:
    """Look for all kinds of faults in images that can be read, see `dml.evaluation.audit.findings.ISSUES`.

    Args:
        images: at least two images.
        settings: the thresholds of the audit.
        class_sizes: number of images of each class, where the images are a part of the data set; None counts them.

    Returns:
        The findings, ranked within each kind.
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
    """Find the nearest neighbors of each image.

    Args:
        images: at least two images.
        settings: the thresholds of the audit.
        copies: rows of the copies of each image, which are left out; None leaves out none.

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
