"""Lloyd's k-means in torch, for embeddings on a CUDA device; it repeats FAISS's algorithm step by step."""

from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.retrieval.gallery import precise_products

MEMORY = 2**28
"""Bytes of distances to the centroids that are held at a time."""

SPLIT = 1 / 1024
"""Relative shift by which FAISS moves the two halves of a split cluster apart."""

SPLIT_SEED = 1234
"""Seed with which FAISS draws the clusters to split."""


def lloyd_clusters(rows: Tensor, clusters: int, seed: int, iterations: int) -> Tensor:
    """Cluster rows as ``faiss.Kmeans`` does, on their device. (N, D) float32 -> (N,) int64

    The initial centroids are the rows that FAISS would draw, and empty clusters are refilled as in FAISS. The clusters
    are therefore those of `dml.retrieval.kmeans` on CPU, except where the rounding of distances and means decides. Sums
    are computed in a fixed order, so the same rows give the same clusters on the same machine.

    >>> lloyd_clusters(torch.tensor([[0.0], [5.0]]), clusters=2, seed=0, iterations=1).tolist()
    [0, 1]

    Args:
        rows: (N, D) float32 embeddings, all finite, on any device.
        clusters: number of clusters, 1 to N.
        seed: seed of the initial centroids.
        iterations: number of rounds, at least 1.
    """
    if clusters == len(rows):
        return _nearest_centroids(rows, rows)
    centroids = rows[torch.from_numpy(_draw_rows(len(rows), clusters, seed)).to(rows.device)]
    for _ in range(iterations):
        assignment = _nearest_centroids(rows, centroids)
        counts = torch.bincount(assignment.cpu(), minlength=clusters)
        centroids = _means(rows, assignment, counts)
        _refill_empty(centroids, counts.numpy(), len(rows))
    return _nearest_centroids(rows, centroids)


def _draw_rows(rows: int, clusters: int, seed: int) -> npt.NDArray[np.int64]:
    """Draw the indices of the rows that FAISS takes as initial centroids -> (C,)."""
    library: Any = faiss
    order = np.empty(rows, dtype=np.int32)
    library.rand_perm(library.swig_ptr(order), rows, seed + 1)
    return order[:clusters].astype(np.int64)


def _nearest_centroids(rows: Tensor, centroids: Tensor) -> Tensor:
    """Find the nearest centroid of each row; ties: the first. (N, D), (C, D) -> (N,)"""
    squares = centroids.square().sum(dim=1)
    with precise_products():
        parts = [
            torch.addmm(squares, part, centroids.T, alpha=-2).argmin(dim=1)
            for part in torch.split(rows, max(1, MEMORY // (4 * len(centroids))))
        ]
    return torch.cat(parts)


def _means(rows: Tensor, assignment: Tensor, counts: Tensor) -> Tensor:
    """Compute the mean of each cluster's rows, zero for an empty cluster. (N, D), (N,), (C,) -> (C, D)"""
    counts = counts.to(rows.device)
    # On a GPU, scatter_add would add in a random order.
    sorted_rows = rows[assignment.argsort(stable=True)]
    return torch.segment_reduce(sorted_rows, "sum", lengths=counts) / counts.clamp(min=1)[:, None]


def _refill_empty(centroids: Tensor, counts: npt.NDArray[np.int64], rows: int) -> None:
    """Replace each empty cluster by half of a random large one, like ``split_clusters`` in FAISS's Clustering.cpp."""
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return
    draws = np.random.RandomState(SPLIT_SEED)  # the same generator as C++'s std::mt19937
    sizes = counts.astype(np.float32)
    signs = torch.ones(centroids.shape[1], device=centroids.device)
    signs[1::2] = -1
    for filled in empty.tolist():
        split = _draw_cluster(sizes, rows, draws)
        centroids[filled] = centroids[split] * (1 + SPLIT * signs)
        centroids[split] *= 1 - SPLIT * signs
        sizes[filled] = sizes[split] / 2
        sizes[split] -= sizes[filled]


def _draw_cluster(sizes: npt.NDArray[np.float32], rows: int, draws: np.random.RandomState) -> int:
    """Try the clusters in turn until one is drawn, each with probability (size - 1) / (N - C)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        probabilities = (sizes - 1) / np.float32(rows - len(sizes))
    while True:
        for cluster, probability in enumerate(probabilities.tolist()):
            if draws.randint(0, 2**32, dtype=np.uint32) / (2**32 - 1) < probability:
                return cluster
