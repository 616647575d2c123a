"""Neighbors, rankings, clusters and metrics on a GPU: with exact products those of the CPU, ties included."""

from typing import Any

import faiss
import numpy as np
import pytest
import torch
from torch import Tensor

from dml.evaluation import evaluate
from dml.evaluation.metric import DEFAULT_METRICS
from dml.retrieval.kmeans_clusters import kmeans
from dml.retrieval.search import nearest_neighbors
from dml.retrieval.vector_index import VectorIndex

COUNT, SIZE = 700, 16
LABELS = np.stack([np.arange(COUNT) % 90, np.arange(COUNT) % 30, np.arange(COUNT) % 6], axis=1)


def exact_rows(seed: int, count: int = COUNT) -> Tensor:
    """Draw rows of 1 and -1, of length 4: products are exact, also of the normalized rows, and ties are many.

    Some rows are 0, and some all 1: a product of the two is -0 or 0, which are a tie.
    """
    rng = np.random.default_rng(seed)
    rows = rng.choice([-1.0, 1.0], size=(count, SIZE)).astype(np.float32)
    rows[::50], rows[1::50] = 0.0, 1.0
    return torch.from_numpy(rows)


@pytest.mark.parametrize("metrics", [DEFAULT_METRICS, ("recall",), ("recall", "map@r", "r_precision")])
@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("has_gallery", [False, True])
def test_metrics_are_those_of_the_cpu(metrics: Any, levels: int, has_gallery: bool, device: str) -> None:
    settings: dict[str, Any] = {"metrics": metrics, "recall_at": (1, 10, 100), "clustering": False}
    labels = LABELS[:, :levels]
    given = {"query_labels": labels} | ({"gallery_labels": labels} if has_gallery else {})

    def found(place: str) -> dict[str, float]:
        gallery = {"gallery": exact_rows(1).to(place)} if has_gallery else {}
        return evaluate(query=exact_rows(0).to(place), **given, **gallery, **settings)

    expected = found("cpu")
    assert len(expected) > len(metrics)
    assert found(device) == pytest.approx(expected, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("memory", [2**20, 2**29])
def test_blocks_of_any_size_give_the_same(memory: int, device: str) -> None:
    rows = exact_rows(0).to(device)
    expected = evaluate(rows, LABELS, clustering=False)
    assert evaluate(rows, LABELS, clustering=False, memory=memory) == pytest.approx(expected, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("has_gallery", [False, True])
@pytest.mark.parametrize("k", [1, 10, 699])
def test_neighbors_are_those_of_the_cpu(k: int, has_gallery: bool, device: str) -> None:
    gallery = exact_rows(1) if has_gallery else None
    scores, indices = nearest_neighbors(exact_rows(0), k, gallery)
    on_gpu = None if gallery is None else gallery.to(device)
    its_scores, its_indices = nearest_neighbors(exact_rows(0).to(device), k, on_gpu)
    assert torch.equal(its_scores, scores)
    assert torch.equal(its_indices, indices)


def test_products_are_float32_whatever_training_uses(device: str) -> None:
    """TF32, which `training.matmul_precision=high` uses in training steps, has errors of 1e-3, and bfloat16 of 1e-2."""
    rows = torch.nn.functional.normalize(torch.randn(300, 64, generator=torch.Generator().manual_seed(0)))
    exact = rows.double() @ rows.double().T
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast(device, dtype=torch.bfloat16):
            scores, indices = nearest_neighbors(rows.to(device), 50)
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(scores.double(), exact.gather(1, indices), rtol=0, atol=1e-6)


def test_clusters_are_those_of_the_cpu(device: str) -> None:
    centers = 20 * torch.randn(30, SIZE, generator=torch.Generator().manual_seed(0))
    rows = centers[torch.arange(3000) % 30] + torch.randn(3000, SIZE, generator=torch.Generator().manual_seed(1))
    clusters = kmeans(rows.to(device), clusters=30)
    assert clusters.device.type == "cpu"
    assert torch.equal(clusters, kmeans(rows, clusters=30))
    assert torch.equal(clusters, kmeans(rows.to(device), clusters=30))


@pytest.mark.skipif(not faiss.get_num_gpus(), reason="the installed FAISS has no GPU")
@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "HNSW8"])
def test_an_index_finds_there_what_it_finds_on_the_cpu(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.nn.functional.normalize(torch.randn(600, SIZE, generator=torch.Generator().manual_seed(0))).numpy()
    found = []
    for gpus in (faiss.get_num_gpus(), 0):
        monkeypatch.setattr(faiss, "get_num_gpus", lambda gpus=gpus: gpus)
        index = VectorIndex(SIZE, factory)
        if index.needs_training:
            index.train(rows)
        index.add(rows, np.arange(600))
        found.append(index.search(rows[:50], k=5))
    np.testing.assert_array_equal(found[0][1], found[1][1])
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-5)
