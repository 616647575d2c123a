"""Labels that the neighbors of an image disagree with, and classes that could be merged, split or left out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log10

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor

from dml.data.table import UNKNOWN
from dml.evaluation.audit.findings import (
    DIVIDED_CLASS,
    DOUBTFUL_LABEL,
    MIXED_CLASSES,
    SMALL_CLASS,
    AuditedImages,
    AuditSettings,
    Finding,
)
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

    ``rows`` (M,) are the images whose class has another image, ``quality`` (M,) the probability of their class, out of
    fold, and ``suggested`` (M,) the label of the most probable other class.
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
    """Yield parts of the rows (M,) and the probabilities (B, C) of the classes for each image of a part, out of fold.

    ``classes`` (C,) are the labels of the classes, rising. The copies of an image don't count as neighbors.
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

    ``neighbors`` (N, k) are the rows of the nearest neighbors, without copies; -1 where there are fewer.
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


SHOWN = 8
"""Number of images of a class that a page shows."""
EVIDENCE = 1.5
"""Mean number of neighbors in the other class from which on two classes may be mixed."""
COPIED = 0.5
"""Share of the images of a class with copies in another from which on the two are one class."""
UNUSUAL = 1.5
"""The least ratio of the score of a divided class to the median score."""
DIVIDED_FROM = 10
"""Number of images from which on a class may be split."""
SMALLEST_HALF = 3
LEAST_DIFFERENCE = 1e-6
"""The least difference of similarities that is divided by."""


def report_mixed_classes(
    images: AuditedImages, neighbors: NDArray[np.int64], copies: Sequence[Sequence[int]], settings: AuditSettings
) -> list[Finding]:
    """Find pairs of classes whose images have each other for neighbors or for copies, as if the classes were one.

    The mixing of class A into B is the ratio of two shares of the neighbors of A's images: of those in B and of those
    in A itself, each divided by the number of images there. It is 1 if A's images are as near to an image of B as to
    another of A. The score is the geometric mean of both directions, each at most 1. In both directions, the images
    must have 1.5 neighbors in the other class on average: small classes are mixed by chance otherwise. If more of a
    class has copies in the other, the score is this share of its images.

    ``neighbors`` (N, k) are the rows of the nearest neighbors, without copies; -1 where there are fewer.
    """
    labels = images.labels
    sizes = np.bincount(labels[labels != UNKNOWN]).tolist()
    is_pair = (neighbors >= 0) & (labels[:, None] != UNKNOWN) & (labels[neighbors] != UNKNOWN)
    query_labels = np.broadcast_to(labels[:, None], neighbors.shape)[is_pair]
    pairs, numbers = np.unique(np.stack([query_labels, labels[neighbors[is_pair]]], axis=1), axis=0, return_counts=True)
    counts = Counter({(first, second): number for (first, second), number in zip(pairs.tolist(), numbers, strict=True)})
    copied = Counter(
        (label, other)
        for label, rows in zip(labels.tolist(), copies, strict=True)
        for other in {*labels[list(rows)].tolist()}
    )
    findings = []
    for first, second in sorted({*counts, *copied}):
        is_small = min(sizes[first], sizes[second]) < settings.smallest_class
        if first >= second or first == UNKNOWN or is_small:
            continue
        ways = ((first, second), (second, first))
        share = max(copied[way] / sizes[way[0]] for way in ways)
        evidence = min(counts[way] / sizes[way[0]] for way in ways)
        mixing = float(np.sqrt(np.prod([_mix(counts, sizes, *way) for way in ways]))) if evidence >= EVIDENCE else 0.0
        if mixing >= settings.mixed or share >= COPIED:
            findings.append((evidence, _describe_mixed(images, first, second, mixing, share)))
    return [finding for _, finding in sorted(findings, key=lambda pair: (-pair[1].score, -pair[0]))]


def _mix(counts: Counter[tuple[int, int]], sizes: Sequence[int], label: int, other: int) -> float:
    """Return the mixing of a class into another, at most 1, by the numbers of neighbors in either."""
    expected = counts[label, label] * sizes[other] / max(1, sizes[label] - 1)
    return min(1.0, counts[label, other] / expected) if expected else 1.0


def _describe_mixed(images: AuditedImages, first: int, second: int, mixing: float, share: float) -> Finding:
    rows = [np.flatnonzero(images.labels == label) for label in (first, second)]
    (larger, larger_rows), (smaller, smaller_rows) = sorted(
        zip((first, second), rows, strict=True), key=lambda pair: (-len(pair[1]), pair[0])
    )
    reason = "as near to each other as to themselves" if mixing >= share else "of one class have copies in the other"
    return Finding(
        issue=MIXED_CLASSES,
        score=max(mixing, share),
        remark=f"{len(larger_rows)} and {len(smaller_rows)} images; {max(mixing, share):.0%} {reason}",
        label=images.name_class(larger),
        other_label=images.name_class(smaller),
        pictures=(tuple(larger_rows[:SHOWN].tolist()), tuple(smaller_rows[:SHOWN].tolist())),
    )


def report_divided_classes(images: AuditedImages, settings: AuditSettings, seed: int = 0) -> list[Finding]:
    """Find classes whose two halves, by k-means, are nearly as far apart as two classes.

    The score is (w - b) / (w - o) for the mean similarities of two images of one half (w), of images of both halves
    (b), and of images of this class and of others (o). Few images always fall into two clusters, so a measure of the
    clusters alone, such as the silhouette, would divide most small classes. It must also be 1.5 times the median score:
    embeddings that tell no classes apart would divide all of them.
    """
    findings = []
    is_known = images.labels != UNKNOWN
    total = images.embeddings[is_known].sum(dim=0)
    labels, sizes = np.unique(images.labels[is_known], return_counts=True)
    for label in labels[(sizes >= DIVIDED_FROM) & (sizes < sizes.sum())].tolist():
        rows = np.flatnonzero(images.labels == label)
        embeddings = images.embeddings[rows].numpy()
        if len(np.unique(embeddings, axis=0)) <= 2:
            continue
        clusters = KMeans(n_clusters=2, n_init=4, random_state=seed).fit_predict(embeddings)
        halves = sorted((rows[clusters == number] for number in (0, 1)), key=len, reverse=True)
        if len(halves[1]) < SMALLEST_HALF:
            continue
        centers = [images.embeddings[half].mean(dim=0) for half in halves]  # their products are mean similarities
        within = sum((len(half) * c @ c - 1) / (len(half) - 1) for half, c in zip(halves, centers, strict=True)) / 2
        class_sum = images.embeddings[rows].sum(dim=0)
        outside = class_sum @ (total - class_sum) / (len(rows) * (sizes.sum() - len(rows)))
        score = float((within - centers[0] @ centers[1]) / max(within - outside, LEAST_DIFFERENCE))
        findings.append(_describe_divided(images, label, halves, score))
    least = max(settings.divided, UNUSUAL * float(np.median([0.0, *(finding.score for finding in findings)])))
    return sorted((finding for finding in findings if finding.score >= least), key=lambda finding: -finding.score)


def _describe_divided(images: AuditedImages, label: int, halves: list[NDArray[np.int64]], score: float) -> Finding:
    return Finding(
        issue=DIVIDED_CLASS,
        score=score,
        remark=f"{len(halves[0])} and {len(halves[1])} images, {score:.0%} as far apart as two classes",
        path=str(images.table.paths[halves[1][0]]),
        label=images.name_class(label),
        pictures=tuple(tuple(half[:SHOWN].tolist()) for half in halves),
    )


def report_small_classes(
    images: AuditedImages, settings: AuditSettings, class_sizes: Mapping[int, int] | None = None
) -> list[Finding]:
    """Find the classes with fewer images than ``smallest_class``, the smallest first.

    ``class_sizes`` is the number of images of each class if the images are a part of the data set; None counts them.
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
