"""Evaluation by Poincare distance against the distances of all pairs."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dml.evaluation import evaluate
from dml.evaluation.items import Items
from dml.evaluation.metric import MetricConfig
from dml.evaluation.ranking import rank_queries
from dml.losses.hyperbolic import poincare_distances, to_ball
from dml.ops.poincare import ranking_vectors
from dml.retrieval import nearest_neighbors
from dml.runtime.errors import InputError

BALLS = [(0.1, 2.3), (1.0, 1.0), (1.0, 4.0), (2.0, 0.5)]


def points(count: int, curvature: float, clip: float, seed: int = 0) -> Tensor:
    """Points whose norms differ, so that their order by cosine is another one."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    lengths = torch.rand(count, 1, dtype=torch.float64, generator=generator)
    return to_ball(clip * lengths * rows / rows.norm(dim=1, keepdim=True), curvature, clip)


def brute_force(query: Tensor, gallery: Tensor, curvature: float) -> Tensor:
    """The nearest items first, from distances that are computed a pair at a time by arcosh."""
    rows = []
    for x in query:
        room = 1 - curvature * float(x @ x)
        ratios = [float((x - y) @ (x - y)) / (room * (1 - curvature * float(y @ y))) for y in gallery]
        rows.append([math.acosh(1 + 2 * curvature * ratio) / math.sqrt(curvature) for ratio in ratios])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("ball", BALLS)
def test_inner_products_are_in_the_order_of_the_distances(ball: tuple[float, float]) -> None:
    rows = points(60, *ball)
    queries, items = ranking_vectors(rows, ball[0])
    assert queries.shape == items.shape == (60, 4 + 2)
    products, distances = queries @ items.T, brute_force(rows, rows, ball[0])
    assert torch.equal(products.argsort(dim=1, descending=True), distances.argsort(dim=1))
    assert products.abs().max() <= 1
    torch.testing.assert_close(poincare_distances(rows, rows, ball[0]), distances, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("ball", BALLS)
@pytest.mark.parametrize("metrics", [("recall",), ("recall", "ap")])
def test_the_nearest_neighbors_are_those_of_all_distances(ball: tuple[float, float], metrics: tuple[str, ...]) -> None:
    query, gallery = points(30, *ball), points(80, *ball, seed=1)
    labels, gallery_labels = np.arange(30) % 5, np.arange(80) % 5
    distances = brute_force(query, gallery, ball[0])
    settings: dict[str, Any] = {"metrics": metrics, "recall_at": (1, 2), "curvature": ball[0], "neighbors": 10}
    ranked = rank_queries(query, labels, gallery, gallery_labels, **settings)
    expected = distances.sort(dim=1)
    np.testing.assert_array_equal(ranked.neighbors, expected.indices[:, :10])
    np.testing.assert_allclose(-ranked.similarities, expected.values[:, :10], rtol=1e-5, atol=1e-5)
    hits = gallery_labels[expected.indices] == labels[:, None]
    np.testing.assert_array_equal(ranked.values["level0/recall@1"], hits[:, 0])
    if "ap" in metrics:
        ranks = np.arange(1, 81)
        precision = [float(np.mean(np.arange(1, row.sum() + 1) / ranks[row])) for row in hits]
        np.testing.assert_allclose(ranked.values["level0/ap"], precision)


def test_a_query_is_excluded_from_its_own_gallery() -> None:
    rows, labels = points(40, 0.1, 2.3), np.arange(40) % 8
    distances = brute_force(rows, rows, 0.1).fill_diagonal_(torch.inf)
    metrics = evaluate(rows, labels, metrics=("recall",), recall_at=(1,), curvature=0.1)
    assert metrics["level0/recall@1"] == np.mean(labels[distances.argmin(dim=1)] == labels)


def test_the_nearest_item_can_be_excluded_by_distance() -> None:
    rows, labels = points(40, 1.0, 1.0), np.arange(40) % 8
    settings: dict[str, Any] = {"metrics": ("recall",), "recall_at": (1,), "curvature": 1.0}
    excluding = evaluate(rows, labels, exclude_nearest=True, **settings)
    assert excluding == evaluate(rows, labels, **settings)


def test_the_order_is_not_that_of_cosines() -> None:
    rows, labels = points(40, 1.0, 3.0), np.arange(40) % 4
    settings: dict[str, Any] = {"metrics": ("ap",)}
    assert evaluate(rows, labels, curvature=1.0, **settings) != evaluate(rows, labels, **settings)


@pytest.mark.parametrize("curvature", [float("nan"), float("inf"), -1.0, "0.1"])
def test_a_curvature_that_is_no_number_is_refused(curvature: Any) -> None:
    with pytest.raises(InputError, match=f"^curvature={curvature}: must be "):
        MetricConfig(curvature=curvature)


def test_points_outside_the_ball_are_refused() -> None:
    with pytest.raises(InputError, match=r"query: 2 of 3 points are outside the Poincare ball of curvature 4"):
        evaluate(np.array([[0.1, 0.0], [0.6, 0.0], [0.0, 0.5]]), np.array([0, 0, 1]), curvature=4.0)


def test_items_without_a_curvature_are_their_own_vectors() -> None:
    items = Items(torch.eye(3), np.zeros((3, 1)))
    assert items.gallery_vectors() is items.embeddings
    assert torch.equal(items.query_vectors(slice(1, 3)), torch.eye(3)[1:])


@pytest.mark.parametrize("ball", BALLS)
def test_a_search_of_inner_products_finds_the_nearest_points(ball: tuple[float, float]) -> None:
    query, gallery = points(30, *ball), points(80, *ball, seed=1)
    _, indices = nearest_neighbors(ranking_vectors(query, ball[0])[0], 10, ranking_vectors(gallery, ball[0])[1])
    assert torch.equal(indices, brute_force(query, gallery, ball[0]).argsort(dim=1)[:, :10])
