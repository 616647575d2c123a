"""k-means in torch, which runs on CUDA, against FAISS's on CPU."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from dml.retrieval import lloyd
from dml.retrieval.kmeans_clusters import kmeans
from dml.retrieval.lloyd import lloyd_clusters

Floats = npt.NDArray[np.float32]


def unit_embeddings(count: int, dim: int, classes: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, dim)) + 2 * rng.normal(size=(classes, dim))[rng.integers(0, classes, count)]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def squared_error(rows: Floats, clusters: Tensor) -> float:
    """The sum of the squared distances to the clusters' means."""
    found = clusters.numpy()
    return sum(float(((part - part.mean(axis=0)) ** 2).sum()) for c in np.unique(found) for part in [rows[found == c]])


@pytest.mark.parametrize(("count", "dim", "clusters"), [(600, 16, 100), (300, 64, 3), (50, 8, 1), (40, 8, 40)])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_clusters_are_those_of_faiss(count: int, dim: int, clusters: int, seed: int) -> None:
    rows = unit_embeddings(count, dim, max(2, clusters))
    found = lloyd_clusters(torch.from_numpy(rows), clusters, seed, iterations=20)
    assert found.dtype == torch.int64
    assert found.tolist() == kmeans(rows, clusters, seed).tolist()


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.from_numpy(unit_embeddings(200, 16, 20))
    whole = lloyd_clusters(rows, 20, 0, 20)
    monkeypatch.setattr(lloyd, "MEMORY", 4 * 20 * 7)  # bytes for seven rows
    assert torch.equal(lloyd_clusters(rows, 20, 0, 20), whole)


def test_empty_clusters_are_refilled_as_well_as_faiss_does() -> None:
    # of equal first centroids one keeps all rows, the others fall empty
    rows = unit_embeddings(400, 8, 40)[np.random.default_rng(1).integers(0, 200, 400)]
    found, expected = lloyd_clusters(torch.from_numpy(rows), 80, 0, 20), kmeans(rows, 80, 0)
    assert abs(len(found.unique()) - len(expected.unique())) <= 2
    assert squared_error(rows, found) == pytest.approx(squared_error(rows, expected), rel=0.05)


def test_equal_rows_alone_end() -> None:
    assert lloyd_clusters(torch.ones(6, 4), 3, 0, 20).unique().numel() <= 3
