"""Metrics of raw features, after a PCA and whitened: against loops and numpy's singular value decomposition."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from image_tables import make_table

from dml.data.table import ImageTable
from dml.evaluation import evaluate
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import MetricConfig
from dml.evaluation.raw_features import (
    PrincipalComponents,
    describe_best,
    evaluate_projections,
    normalize_within_classes,
    recall_among,
)
from dml.runtime.errors import InputError

CONFIG = MetricConfig(metrics=("recall", "map@r"), recall_at=(1,), clustering=False)


def by_hand(features: npt.NDArray[np.float64], table: ImageTable) -> tuple[float, float]:
    """Recall@1 and MAP@R by loops over queries, sorted cosines and ranks."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    labels, recalls, precisions = table.labels[:, 0], [], []
    has_gallery = "gallery" in table.split
    for query in np.flatnonzero(np.isin(table.split, ("query", "test"))):
        gallery = [i for i in range(len(table)) if (table.split[i] == "gallery" if has_gallery else i != query)]
        ranking = sorted(gallery, key=lambda i: -float(unit[query] @ unit[i]))
        hits = [labels[i] == labels[query] for i in ranking]
        number = sum(hits)
        if number:
            recalls.append(float(hits[0]))
            precisions.append(sum(sum(hits[: k + 1]) / (k + 1) for k in range(number) if hits[k]) / number)
    return float(np.mean(recalls)), float(np.mean(precisions))


@pytest.mark.parametrize("images", [40, 5])  # more and fewer than there are features
@pytest.mark.parametrize("splits", [("test",), ("query", "gallery")])
def test_projections_are_those_of_a_singular_value_decomposition(splits: tuple[str, ...], images: int) -> None:
    rng = np.random.default_rng(3)
    train = rng.normal(size=(images, 6)) * np.array([5, 3, 2, 1, 1, 0.5]) + 1
    labels = np.repeat(np.arange(6), 4)
    test = rng.normal(size=(24, 6)) + rng.normal(size=(6, 6))[labels]
    table = make_table(labels, np.resize(np.array(splits), len(labels)))
    results = evaluate_projections(torch.tensor(train).float(), torch.tensor(test).float(), Evaluator(table, CONFIG), 3)
    assert [*results] == ["raw", "PCA 3", "PCA 3, whitened"]
    _, values, directions = np.linalg.svd(train - train.mean(axis=0), full_matrices=False)
    projected = (test - train.mean(axis=0)) @ directions[:3].T
    expected = {"raw": test, "PCA 3": projected, "PCA 3, whitened": projected / values[:3]}
    for name, features in expected.items():
        recall, map_at_r = by_hand(features, table)
        assert results[name]["level0/recall@1"] == pytest.approx(recall, abs=1e-12)
        assert results[name]["level0/map@r"] == pytest.approx(map_at_r, abs=1e-9)
    assert len({tuple(metrics.values()) for metrics in results.values()}) == 3  # the three differ


def test_whitened_training_features_have_no_correlation_and_variance_one() -> None:
    features = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) @ torch.diag(
        torch.tensor([4.0, 2, 1, 0.1])
    )
    white = PrincipalComponents.fit(features, 4).project(features, whiten=True)
    torch.testing.assert_close(torch.cov(white.T), torch.eye(4), atol=1e-4, rtol=0)


def test_directions_without_variance_are_left_out() -> None:
    features = torch.zeros(5, 4)
    features[:, 1] = torch.arange(5.0)
    assert PrincipalComponents.fit(features, 4).directions.shape == (1, 4)
    assert PrincipalComponents.fit(torch.ones(5, 4), 4).directions.shape == (0, 4)


@pytest.mark.parametrize("train", [torch.ones(5, 3), torch.ones(1, 3), torch.empty(0, 3)])
def test_without_training_images_that_differ_there_are_raw_features_alone(train: torch.Tensor) -> None:
    table = make_table(np.array([0, 0, 1, 1]), np.array(["test"] * 4))
    assert [*evaluate_projections(train, torch.eye(4)[:, :3], Evaluator(table, CONFIG), 2)] == ["raw"]


def test_the_verdict_names_the_best_and_counts_what_it_misses() -> None:
    values = {"level0/recall@1": 0.5, "level0/map@r": 0.4, "level0/queries_without_positives": 2.0}
    results = {"a, raw": values, "b, raw": values | {"level0/recall@1": 0.75, "level0/map@r": 0.3}}
    line = describe_best(results, 10)
    assert line.startswith("b, raw finds most: recall@1 is 75.0% of 8 queries. The nearest image of 2 is of another")
    assert "recall@1 of species is" in describe_best(results, 10, ("species", "genus"))
    results["b, raw"]["level0/recall@1"] = 1.0
    assert "little is left to gain" in describe_best(results, 10)


def test_known_classes_vary_alike_in_all_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a smoothing near 0 the covariance around the means of the known classes becomes the unit matrix."""
    monkeypatch.setattr("dml.evaluation.raw_features.SMOOTHING", 1e-9)
    generator = np.random.default_rng(0)
    labels = np.repeat([7, 2, 5], 40)
    noise = generator.normal(size=(120, 4)) @ generator.normal(size=(4, 4))
    features = torch.from_numpy(noise + 30 * generator.normal(size=(3, 4))[np.repeat([0, 1, 2], 40)])
    mapped = normalize_within_classes(features, labels, features).double().numpy()
    centered = np.concatenate([part - part.mean(axis=0) for part in (mapped[labels == c] for c in (7, 2, 5))])
    np.testing.assert_allclose(centered.T @ centered / 120, np.eye(4), atol=1e-4)
    np.testing.assert_allclose(mapped.mean(axis=0), 0, atol=1e-4)


def test_fewer_images_than_features_are_mapped_by_the_same_covariance() -> None:
    """By the matrix of covariances itself, whose inverse is A A^T: inner products are x A A^T y."""
    generator = np.random.default_rng(1)
    labels, features, others = np.repeat([0, 1], 4), generator.normal(size=(8, 30)), generator.normal(size=(5, 30))
    centered = features - np.repeat([features[:4].mean(axis=0), features[4:].mean(axis=0)], 4, axis=0)
    covariance = 0.1 * centered.T @ centered / 8 + 0.9 * np.square(centered).mean() * np.eye(30)
    mapped = normalize_within_classes(torch.from_numpy(features), labels, torch.from_numpy(others)).double().numpy()
    shifted = others - features.mean(axis=0)
    np.testing.assert_allclose(mapped @ mapped.T, shifted @ np.linalg.solve(covariance, shifted.T), atol=1e-4)


def test_smoothing_shrinks_the_covariance_towards_its_mean_variance() -> None:
    """By hand: deviations of 3 and 1 along the axes have variances 9 and 1, smoothed to 0.1 times them + 0.9 * 5."""
    features = torch.tensor([[3.0, 1.0], [-3.0, -1.0], [-3.0, 1.0], [3.0, -1.0]])
    mapped = normalize_within_classes(features, np.zeros(4, dtype=np.int64), features).abs()
    np.testing.assert_allclose(mapped.sort(dim=1).values, [[1 / 4.6**0.5, 3 / 5.4**0.5]] * 4, rtol=1e-6)


def by_loops(embeddings: np.ndarray, labels: np.ndarray, neighbors: np.ndarray, k: int) -> float:
    """The share of queries with a positive anywhere that have one among the k most similar of their neighbors."""
    unit = embeddings.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    hits = []
    for query, own in enumerate(neighbors.tolist()):
        if (labels == labels[query]).sum() > 1:
            ranked = sorted(own, key=lambda item: (-(unit[query] @ unit[item]), item))
            hits.append(any(labels[item] == labels[query] for item in ranked[:k]))
    return float(np.mean(hits))


@examples(40)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 8))
def test_recall_is_that_of_loops(seed: int, number: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    embeddings = rng.standard_normal((12, 3)).astype(np.float32)
    labels = np.stack([np.r_[0, 0, rng.integers(0, 5, 10)], np.arange(12) % 2], axis=1)
    others = [rng.permutation(np.delete(np.arange(12), query))[:number] for query in range(12)]
    neighbors = np.stack(others)
    found = recall_among(embeddings, labels, torch.from_numpy(neighbors), (k,))
    for level in range(2):
        assert found[f"level{level}/recall@{k}"] == by_loops(embeddings, labels[:, level], neighbors, k)


def test_among_all_items_it_is_the_plain_recall() -> None:
    rng = np.random.default_rng(0)
    embeddings, labels = rng.standard_normal((5000, 4)).astype(np.float32), rng.integers(0, 900, 5000)
    plain = evaluate(embeddings[:30], labels[:30] % 7, metrics=["recall"], recall_at=(1, 3))
    others = torch.stack([torch.cat([torch.arange(query), torch.arange(query + 1, 30)]) for query in range(30)])
    found = recall_among(embeddings[:30], labels[:30] % 7, others, (1, 3))
    assert found == {name: value for name, value in plain.items() if "recall" in name}
    # more queries than are ranked at a time: each may find itself one further on, and a random item
    next_one = torch.stack([(torch.arange(5000) + 1) % 5000, torch.randint(5000, (5000,))], dim=1)
    by_hand = recall_among(embeddings, np.arange(5000) // 2, next_one, (2,))["level0/recall@2"]
    hit = (np.arange(5000)[:, None] // 2 == next_one.numpy() // 2).any(axis=1)
    assert by_hand == pytest.approx(hit.mean())


def test_faults_are_one_line() -> None:
    rows, neighbors = np.eye(3, dtype=np.float32), torch.tensor([[1], [2], [0]])
    with pytest.raises(InputError, match="3 embeddings, 2 labels"):
        recall_among(rows, [0, 0], neighbors)
    with pytest.raises(InputError, match="level0: none of the 3 queries has a positive"):
        recall_among(rows, [0, 1, 2], neighbors)
