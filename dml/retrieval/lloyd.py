"""Lloyd's k-means in torch, for embeddings on a CUDA device: FAISS's, step by step."""

from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.retrieval.gallery import full_float32

AT_ONCE = 2**28  # bytes of distances to the centroids that are held at a time
SPLIT = 1 / 1024  # by which FAISS moves the two halves of a cluster apart
SPLIT_SEED = 1234


def lloyd_clusters(rows: Tensor, clusters: int, seed: int, iterations: int) -> Tensor:
    """Cluster rows as ``faiss.Kmeans`` does, on their device. (N, D) float32 -> (N,) int64

    The first centroids are the rows that FAISS draws, and empty clusters are refilled as FAISS does, so the clusters
    are those of `dml.retrieval.clustering.kmeans` on CPU but for the rounding of distances and means. Sums are taken in
    a fixed order: the same rows give the same clusters on the same machine.

    Args:
        rows: (N, D) float32, all finite, on any device.
        clusters: number of clusters, 1 to N.
        seed: seed that the first centroids are drawn with.
        iterations: number of rounds, at least 1.
    """
    if clusters == len(rows):
        return _nearest_centroids(rows, rows)
    centroids = rows[torch.from_numpy(_drawn_rows(len(rows), clusters, seed)).to(rows.device)]
    for _ in range(iterations):
        assignment = _nearest_centroids(rows, centroids)
        counts = torch.bincount(assignment.cpu(), minlength=clusters)
        centroids = _means(rows, assignment, counts)
        _refill_empty(centroids, counts.numpy(), len(rows))
    return _nearest_centroids(rows, centroids)


def _drawn_rows(rows: int, clusters: int, seed: int) -> npt.NDArray[np.int64]:
    """The indices of the rows that FAISS begins with."""
    library: Any = faiss
    order = np.empty(rows, dtype=np.int32)
    library.rand_perm(library.swig_ptr(order), rows, seed + 1)
    return order[:clusters].astype(np.int64)


def _nearest_centroids(rows: Tensor, centroids: Tensor) -> Tensor:
    """The nearest centroid of each row, of several the first. (N, D), (C, D) -> (N,)"""
    squares = centroids.square().sum(dim=1)
    with full_float32():
        parts = [
            torch.addmm(squares, part, centroids.T, alpha=-2).argmin(dim=1)
            for part in torch.split(rows, max(1, AT_ONCE // (4 * len(centroids))))
        ]
    return torch.cat(parts)


def _means(rows: Tensor, assignment: Tensor, counts: Tensor) -> Tensor:
    """The mean of each cluster's rows, zero for an empty one. (N, D), (N,), (C,) -> (C, D)"""
    counts = counts.to(rows.device)
    # scatter_add would add in an order of its own on a GPU
    in_order = rows[assignment.argsort(stable=True)]
    return torch.segment_reduce(in_order, "sum", lengths=counts) / counts.clamp(min=1)[:, None]


def _refill_empty(centroids: Tensor, counts: npt.NDArray[np.int64], rows: int) -> None:
    """Split a cluster, drawn by its number of rows, for each empty one: FAISS's ``Clustering.cpp``, split_clusters."""
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return
    draws = np.random.RandomState(SPLIT_SEED)  # the generator of C++'s std::mt19937
    sizes = counts.astype(np.float32)
    signs = torch.ones(centroids.shape[1], device=centroids.device)
    signs[1::2] = -1
    for filled in empty.tolist():
        split = _drawn_cluster(sizes, rows, draws)
        centroids[filled] = centroids[split] * (1 + SPLIT * signs)
        centroids[split] *= 1 - SPLIT * signs
        sizes[filled] = sizes[split] / 2
        sizes[split] -= sizes[filled]


def _drawn_cluster(sizes: npt.NDArray[np.float32], rows: int, draws: np.random.RandomState) -> int:
    """Go round the clusters until one is chosen, each with the chance (size - 1) / (N - C)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        chances = (sizes - 1) / np.float32(rows - len(sizes))
    while True:
        for cluster, chance in enumerate(chances.tolist()):
            if draws.randint(0, 2**32, dtype=np.uint32) / (2**32 - 1) < chance:
                return cluster
