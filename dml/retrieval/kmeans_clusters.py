from typing import Any

import faiss
import torch
from torch import Tensor

from dml.retrieval.rows import Embeddings, float32_rows
from dml.runtime.errors import check_whole

ITERATIONS = 20
"""The default of the rounds of k-means."""

SPEED = 4e10
"""Multiplications of k-means in a second on a core of a server's CPU."""


def kmeans(embeddings: Embeddings, clusters: int, seed: int = 0, iterations: int = ITERATIONS) -> Tensor:
    """Cluster embeddings (N, D) with FAISS's k-means (Lloyd's algorithm) -> cluster of each row (N,) int64 on CPU.

    The algorithm runs once, on FAISS's GPUs if it has some, from random rows as centroids. A cluster that becomes empty
    is refilled by splitting a large one, but the last round may leave clusters empty. All rows are used, not FAISS's
    at most 256 rows a cluster. The same seed gives the same clusters on the same machine. CPU and GPU give the same
    clusters except where rounding decides.

    >>> assignment = kmeans(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), clusters=2)
    >>> bool(assignment[0] == assignment[1]), bool(assignment[1] == assignment[2])
    (True, False)
    """
    rows = float32_rows(embeddings, "embeddings")
    check_whole("clusters", clusters, least=1)
    check_whole("iterations", iterations, least=1)
    algorithm: Any = faiss.Kmeans(
        rows.shape[1],
        clusters,
        niter=iterations,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),
        gpu=faiss.get_num_gpus(),
    )
    rows_on_cpu = rows.cpu().numpy()
    algorithm.train(rows_on_cpu)
    _, assignment = algorithm.assign(rows_on_cpu)
    return torch.from_numpy(assignment)


def estimate_time(products: int) -> str:
    """Say how long `kmeans` takes here, by the product of embeddings, clusters and dimensions; "" for less than 1 s."""
    cores = faiss.omp_get_max_threads()
    seconds = (ITERATIONS + 1) * products / (SPEED * cores)
    if seconds < 1:
        return ""
    return (
        f"about {seconds:,.0f} s on {cores} core{'s' * (cores > 1)}{', less on its GPU' * bool(faiss.get_num_gpus())}"
    )
