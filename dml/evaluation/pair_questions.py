"""Questions "same or not?" about pairs of images: which one settles most, and the classes that the answers give."""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn import functional as F

from dml.data.table import UNKNOWN
from dml.evaluation.raw_features import normalize_within_classes, spread_embeddings
from dml.retrieval.search import nearest_neighbors

Answer = tuple[int, int, bool | None]
"""Two images, and whether they are of one class; None for a question that was skipped."""
Ints = NDArray[np.int64]

COMPONENTS, SMOOTHING = 128, 0.1
NEIGHBORS, RIVALS = 10, 32
"""The number of neighbors of an image in the graph, and of the clusters that each cluster may be compared with."""
PATIENCE, FEWEST_SAME, GROWTH = 20, 4, 1.5
"""Where fewer than four of twenty answers in a row were "same", there are half as many clusters more from then on."""
DAMPING, STEPS = 0.9, 30


class PairQuestions:
    """Chooses pairs of images to ask about, and divides all images into classes by the answers.

    The method is COBRA (Van Craenendonck et al., COBRA: a fast and simple method for active clustering with pairwise
    constraints, 2018): the images are divided into many small clusters, and the questions are about the images nearest
    to the centers of two clusters, the most similar clusters first. What follows from earlier answers isn't asked.

    There are three departures. The clusters are those of Ward's method, not of k-means. There are 2 √N of them, and
    more after many answers "not". And an image gets its class not from its cluster, but by label spreading (Zhou et
    al., Learning with local and global consistency, 2003) from the images that were asked about or might have been,
    and then once more among embeddings that vary little within the classes of the first time.

    All depends on the features and the answers alone.

    Args:
        features: (N, F) L2-normalized features of the images, N >= 2.
    """

    def __init__(self, features: Tensor) -> None:
        self.embeddings = spread_embeddings(features, COMPONENTS)
        self.graph = _join_neighbors(self.embeddings)
        self._find_clusters = cache(self._compute_clusters)

    def choose(self, answers: Sequence[Answer]) -> tuple[int, int] | None:
        """Choose the next pair of images to ask about; None if nothing is left to ask."""
        groups = self._join_same(answers)
        different, skipped = (_to_pairs(answers, kind) for kind in (False, None))
        for count in _iterate_counts(len(groups), answers):
            clusters, pairs = self._find_clusters(count)
            images = self._choose_exemplars(clusters, answers)[pairs]
            is_open = groups[images[:, 0]] != groups[images[:, 1]]
            is_open &= ~np.isin(_number_pairs(groups[images]), _number_pairs(groups[different]))
            is_open &= ~np.isin(_number_pairs(images), _number_pairs(skipped))
            if is_open.any():
                first, second = images[is_open.argmax()].tolist()
                return first, second
        return None

    def classify(self, answers: Sequence[Answer]) -> Ints:
        """Return the class of each image (N,), the number of one of its images; `UNKNOWN` where the answers don't tell.

        A class is known if an answer was "same".
        """
        counts = [0, *_list_counts(len(self.embeddings), answers)]
        resolved = self._choose_exemplars(self._find_clusters(counts[max(1, len(counts) - 2)])[0], answers)
        seeds = np.union1d(resolved, [image for answer in answers for image in answer[:2]]).astype(np.int64)
        names, groups, sizes = np.unique(self._join_same(answers)[seeds], return_inverse=True, return_counts=True)
        classes = _spread_labels(self.graph, seeds, groups)
        mapped = normalize_within_classes(self.embeddings, classes, self.embeddings, SMOOTHING)
        classes = _spread_labels(_join_neighbors(F.normalize(mapped, dim=1)), seeds, groups)
        return np.where(sizes[classes] > 1, names[classes], UNKNOWN)

    def _join_same(self, answers: Sequence[Answer]) -> Ints:
        """Return the group of each image (N,): images that answers "same" join, also by a third, are in one."""
        first, second = _to_pairs(answers, True).T
        size = len(self.embeddings)
        joined = sparse.coo_matrix((np.ones(len(first)), (first, second)), (size, size))
        groups = connected_components(joined, directed=False)[1]
        smallest: Ints = np.unique(groups, return_index=True)[1][groups]
        return smallest

    def _compute_clusters(self, count: int) -> tuple[Ints, Ints]:
        """Divide the images into clusters (N,) -> these, and pairs of them (P, 2), the most similar first."""
        from sklearn.cluster import AgglomerativeClustering  # late: it takes a second

        ward = AgglomerativeClustering(count, linkage="ward", connectivity=self.graph)
        clusters: Ints = ward.fit_predict(self.embeddings.numpy()).astype(np.int64)
        centers = self._find_centers(clusters)
        scores, rivals = (part.numpy() for part in nearest_neighbors(centers, min(RIVALS, count - 1)))
        pairs = np.stack([np.repeat(np.arange(count), rivals.shape[1]), rivals.ravel()], axis=1)
        return clusters, pairs[np.argsort(-scores.ravel(), kind="stable")]

    def _find_centers(self, clusters: Ints) -> Tensor:
        sums = torch.zeros(clusters.max() + 1, self.embeddings.shape[1])
        return F.normalize(sums.index_add_(0, torch.from_numpy(clusters), self.embeddings), dim=1)

    def _choose_exemplars(self, clusters: Ints, answers: Sequence[Answer]) -> Ints:
        """Return the image of each cluster that is nearest to its center, among those asked about if there are any."""
        nearness = (self.embeddings * self._find_centers(clusters)[clusters]).sum(dim=1).numpy()
        nearness[[image for answer in answers for image in answer[:2]]] += 2
        order = np.lexsort((-nearness, clusters))
        exemplars: Ints = order[np.unique(clusters[order], return_index=True)[1]]
        return exemplars


def _list_counts(images: int, answers: Sequence[Answer]) -> list[int]:
    """List the numbers of clusters that the answers were about, the last one for the next question."""
    counts, start = [max(2, int(2 * images**0.5))], 0
    for stop in range(PATIENCE, len(answers) + 1):
        recent = [same for *_, same in answers[stop - PATIENCE : stop]]
        if stop - PATIENCE >= start and recent.count(True) < FEWEST_SAME:
            counts.append(min(images, int(GROWTH * counts[-1])))
            start = stop
    return counts


def _iterate_counts(images: int, answers: Sequence[Answer]) -> Iterator[int]:
    """Yield numbers of clusters, from the one for the next question to one for each image."""
    count = _list_counts(images, answers)[-1]
    while count < images:
        yield count
        count = int(GROWTH * count)
    yield images


def _join_neighbors(embeddings: Tensor) -> sparse.csr_array:
    """Join each image with its nearest neighbors -> the normalized weights of label spreading (N, N)."""
    scores, neighbors = (part.numpy() for part in nearest_neighbors(embeddings, NEIGHBORS))
    rows = np.repeat(np.arange(len(neighbors)), neighbors.shape[1])
    weights = sparse.csr_array((np.exp(10 * (scores.ravel() - 1)), (rows, neighbors.ravel())), (len(neighbors),) * 2)
    weights = weights.maximum(weights.T)
    scale = sparse.diags_array(np.asarray(weights.sum(axis=1)) ** -0.5)
    return scale @ weights @ scale


def _spread_labels(graph: sparse.csr_array, seeds: Ints, labels: Ints) -> Ints:
    """Spread the labels (S,) of some images through the graph -> labels of all (N,)."""
    sources = np.zeros((graph.shape[0], labels.max() + 1), np.float32)
    sources[seeds, labels] = 1
    spread = sources
    for _ in range(STEPS):
        spread = DAMPING * (graph @ spread) + sources
    spread[seeds] = sources[seeds]
    nearest: Ints = spread.argmax(axis=1)
    return nearest


def _to_pairs(answers: Sequence[Answer], kind: bool | None) -> Ints:
    """Return the pairs (P, 2) that have an answer."""
    return np.array([[first, second] for first, second, same in answers if same is kind], np.int64).reshape(-1, 2)


def _number_pairs(pairs: Ints) -> Ints:
    """Return a number for each pair (P, 2) of numbers, in either order."""
    numbers: Ints = pairs.min(axis=1) * 2**32 + pairs.max(axis=1)
    return numbers
