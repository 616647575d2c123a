"""Labels that the nearest neighbors of an image disagree with."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dml.data.table import UNKNOWN
from dml.evaluation.raw_features import COMPONENTS, IMAGES_PER_COMPONENT

NEAREST = 3  # images of a class that decide how probable it is
TEMPERATURE = 0.07
"""The cosine similarity by which one class has to be closer to be e times as probable."""
NO_IMAGE = -1.0  # the similarity to a class that has no image left to compare with
BLOCK_VALUES = 1 << 24  # similarities that are in memory at a time


class DoubtfulLabels(NamedTuple):
    """Labels that are less probable than one drawn by chance, the least probable first."""

    rows: NDArray[np.int64]  # (P,) images
    chances: NDArray[np.float64]  # (P,) how probable their classes are, 1 for a class drawn by chance
    suggested: NDArray[np.int64]  # (P,) labels of the most probable other classes


def find_doubtful_labels(embeddings: Tensor, labels: NDArray[np.int64], groups: NDArray[np.int64]) -> DoubtfulLabels:
    """Find the labels that are less probable, by an image's nearest neighbors, than one drawn by chance.

    The similarity of an image to a class is the mean cosine to its nearest images of the class, without itself and its
    copies. A softmax makes probabilities of the similarities to all classes. With fewer images than the principal
    components need, whose similarities differ more by chance, a doubtful label is less probable than that share of
    chance. An image whose class has no other image, or is `UNKNOWN`, is not judged.

    Args:
        groups: (N,) equal numbers for near duplicates, see `dml.evaluation.near_duplicates.NearDuplicates`.
    """
    with_group = np.stack([labels, groups], axis=1)
    rows = np.flatnonzero((labels != UNKNOWN) & (_count_equal(labels[:, None]) > _count_equal(with_group)))
    classes, own_numbers = np.unique(labels[rows], return_inverse=True)
    members_by_size = _group_by_size(labels, classes)
    chances, suggested = np.empty(len(rows)), np.empty(len(rows), dtype=np.int64)
    block = max(1, BLOCK_VALUES // len(labels))
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        similarities = embeddings[rows[part]] @ embeddings.T
        similarities[torch.from_numpy(groups[rows[part], None] == groups)] = -torch.inf
        by_class = torch.empty(len(similarities), len(classes), dtype=torch.float64)
        for numbers, members in members_by_size:
            nearest = similarities[:, members].topk(min(NEAREST, members.shape[1]), dim=2).values
            means = nearest.where(nearest.isfinite(), torch.nan).nanmean(dim=2)
            by_class[:, numbers] = means.nan_to_num(NO_IMAGE).double()
        probabilities = torch.softmax(by_class / TEMPERATURE, dim=1).numpy()
        own = np.arange(len(probabilities)), own_numbers[part]
        chances[part] = probabilities[own] * len(classes)
        probabilities[own] = -1
        suggested[part] = classes[probabilities.argmax(axis=1)]
    order = np.argsort(chances, kind="stable")
    order = order[chances[order] < min(1, len(labels) / (IMAGES_PER_COMPONENT * COMPONENTS))]
    return DoubtfulLabels(rows[order], chances[order], suggested[order])


def _count_equal(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each of the keys (N, K) how many are equal to it (N,)."""
    _, numbers, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    return counts[numbers.reshape(-1)]


def _group_by_size(labels: NDArray[np.int64], classes: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], ...]]:
    """Return for each size of classes their numbers (K,) and the rows of their images (K, size)."""
    members = [np.flatnonzero(labels == label) for label in classes]
    sizes = np.array([len(rows) for rows in members])
    numbers_by_size = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
    return [(numbers, np.stack([members[number] for number in numbers])) for numbers in numbers_by_size]
