from typing import Any

import faiss
import torch
from torch import Tensor

from dml.ops.errors import InputError
from dml.retrieval.lloyd import lloyd_clusters
from dml.retrieval.rows import Embeddings, float32_rows, is_on_cuda


def kmeans(embeddings: Embeddings, clusters: int, seed: int = 0, iterations: int = 20) -> Tensor:
    """(N, D) -> the cluster of each row (N,) int64 in [0, clusters), by Lloyd's algorithm.

    One run of `iterations` rounds from `clusters` rows drawn with `seed`; a cluster that falls empty is
    refilled by splitting a large one, though the last round may leave some unused. Every row takes part:
    FAISS's habit of training on at most 256 rows a cluster is off (max_points_per_centroid = N), and so is
    its warning below 39 (min_points_per_centroid = 1). The same seed gives the same clusters on the same
    machine. A CUDA device clusters embeddings that are on it, FAISS on CPU all others: the same clusters, unless
    rounding decides. The result is on CPU.

    Raises InputError unless 1 <= clusters <= N, iterations >= 1, 0 <= seed < 2^31, with finite embeddings.
    """
    rows = float32_rows(embeddings, "embeddings")
    if not 1 <= clusters <= len(rows):
        raise InputError(f"clusters = {clusters}: expected 1 to {len(rows)}, the number of embeddings")
    if iterations < 1:
        raise InputError(f"iterations = {iterations}: expected at least 1")
    if not 0 <= seed < 2**31:  # FAISS keeps it in a C int
        raise InputError(f"seed = {seed}: expected 0 to 2^31 - 1")
    if is_on_cuda(rows):
        return lloyd_clusters(rows, clusters, seed, iterations).cpu()
    machine: Any = faiss.Kmeans(
        rows.shape[1],
        clusters,
        niter=iterations,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),
    )
    on_cpu = rows.cpu().numpy()
    machine.train(on_cpu)
    _, assignment = machine.assign(on_cpu)
    return torch.from_numpy(assignment)
