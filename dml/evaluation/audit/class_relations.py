"""Classes that could be merged, split or left out."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from dml.data.table import UNKNOWN
from dml.evaluation.audit.findings import DIVIDED_CLASS, MIXED_CLASSES, SMALL_CLASS, AuditedImages, Finding
from dml.evaluation.audit.settings import AuditSettings

SHOWN = 8
"""Number of images of a class that a page shows."""
EVIDENCE = 1.5
"""Mean number of neighbours in the other class from which on two classes may be mixed."""
DIVIDED_FROM = 10
"""Number of images from which on a class may be split."""
SMALLEST_HALF = 3
MOST_JUDGED = 1000
"""Largest number of images of a class by which its division is judged; more are drawn at random."""


def report_mixed_classes(images: AuditedImages, neighbors: NDArray[np.int64], settings: AuditSettings) -> list[Finding]:
    """Find pairs of classes whose images have each other for neighbours, as if the classes were one.

    The mixing of class A into B is the ratio of two shares of the neighbours of A's images: of those in B and of those
    in A itself, each divided by the number of images there. It is 1 if A's images are as near to an image of B as to
    another of A. The score is the geometric mean of both directions, each at most 1. In both directions, the images
    must have 1.5 neighbours in the other class on average: small classes are mixed by chance otherwise.

    Args:
        images: the images.
        neighbors: (N, k) rows of the nearest neighbours of each image, without its copies; -1 where there are fewer.
        settings: the thresholds.
    """
    labels = images.labels
    sizes = np.bincount(labels[labels != UNKNOWN])
    is_pair = (neighbors >= 0) & (labels[:, None] != UNKNOWN) & (labels[neighbors] != UNKNOWN)
    own = np.broadcast_to(labels[:, None], neighbors.shape)[is_pair]
    pairs, counts = np.unique(np.stack([own, labels[neighbors[is_pair]]], axis=1), axis=0, return_counts=True)
    count_by_pair = {(first, second): count for (first, second), count in zip(pairs.tolist(), counts, strict=True)}
    findings = []
    for (first, second), count in count_by_pair.items():
        back_count = count_by_pair.get((second, first), 0)
        is_small = min(sizes[first], sizes[second]) < settings.smallest_class
        evidence = min(count / sizes[first], back_count / sizes[second])
        if first >= second or is_small or evidence < EVIDENCE:
            continue
        there = _mix(count, count_by_pair.get((first, first), 0), sizes[first], sizes[second])
        back = _mix(back_count, count_by_pair.get((second, second), 0), sizes[second], sizes[first])
        score = float(np.sqrt(there * back))
        if score >= settings.mixed:
            findings.append((evidence, _describe_mixed(images, first, second, score)))
    return [finding for _, finding in sorted(findings, key=lambda pair: (-pair[1].score, -pair[0]))]


def _mix(other: int, own: int, own_size: int, other_size: int) -> float:
    """Return the mixing of a class into another, at most 1, by the numbers of neighbours in either."""
    expected = own * other_size / max(1, own_size - 1)
    return min(1.0, other / expected) if expected else 1.0


def _describe_mixed(images: AuditedImages, first: int, second: int, score: float) -> Finding:
    rows = [np.flatnonzero(images.labels == label) for label in (first, second)]
    (kept, kept_rows), (other, other_rows) = sorted(
        zip((first, second), rows, strict=True), key=lambda pair: (-len(pair[1]), pair[0])
    )
    return Finding(
        issue=MIXED_CLASSES,
        score=score,
        remark=f"{len(kept_rows)} and {len(other_rows)} images; {score:.0%} as near to each other as to themselves",
        label=images.name_class(kept),
        other_label=images.name_class(other),
        pictures=(tuple(kept_rows[:SHOWN].tolist()), tuple(other_rows[:SHOWN].tolist())),
    )


def report_divided_classes(images: AuditedImages, settings: AuditSettings, seed: int = 0) -> list[Finding]:
    """Find classes whose images fall into two clusters, by the silhouette of k-means with two clusters.

    Args:
        images: the images.
        settings: the thresholds.
        seed: seed of k-means, and of the draw of images from large classes.
    """
    findings = []
    labels, sizes = np.unique(images.labels[images.labels != UNKNOWN], return_counts=True)
    for label in labels[sizes >= DIVIDED_FROM].tolist():
        rows = np.flatnonzero(images.labels == label)
        if len(rows) > MOST_JUDGED:
            rows = np.sort(np.random.default_rng(seed).choice(rows, MOST_JUDGED, replace=False))
        embeddings = images.embeddings[torch.from_numpy(rows)].numpy()
        if len(np.unique(embeddings, axis=0)) <= 2:
            continue
        clusters = KMeans(n_clusters=2, n_init=4, random_state=seed).fit_predict(embeddings)
        halves = sorted((rows[clusters == number] for number in (0, 1)), key=len, reverse=True)
        if len(halves[1]) < SMALLEST_HALF:
            continue
        score = float(silhouette_score(embeddings, clusters, metric="cosine"))
        if score >= settings.divided:
            findings.append(_describe_divided(images, label, halves, score))
    return sorted(findings, key=lambda finding: -finding.score)


def _describe_divided(images: AuditedImages, label: int, halves: list[NDArray[np.int64]], score: float) -> Finding:
    return Finding(
        issue=DIVIDED_CLASS,
        score=score,
        remark=f"{len(halves[0])} and {len(halves[1])} images, silhouette {score:.2f}",
        path=str(images.table.paths[halves[1][0]]),
        label=images.name_class(label),
        pictures=tuple(tuple(half[:SHOWN].tolist()) for half in halves),
    )


def report_small_classes(
    images: AuditedImages, settings: AuditSettings, class_sizes: Mapping[int, int] | None = None
) -> list[Finding]:
    """Find the classes with fewer images than ``smallest_class``, the smallest first.

    Args:
        images: the images.
        settings: the thresholds.
        class_sizes: number of images of each class, where the images are a part of the data set; None counts them.
    """
    labels, counts = np.unique(images.labels[images.labels != UNKNOWN], return_counts=True)
    findings = []
    for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
        size = count if class_sizes is None else class_sizes.get(label, count)
        if size < settings.smallest_class:
            rows = np.flatnonzero(images.labels == label)
            findings.append(
                Finding(
                    issue=SMALL_CLASS,
                    score=1 - size / settings.smallest_class,
                    remark="1 image: no query of it finds a positive" if size == 1 else f"{size} images",
                    label=images.name_class(label),
                    pictures=(tuple(rows[:SHOWN].tolist()),),
                )
            )
    return sorted(findings, key=lambda finding: -finding.score)
