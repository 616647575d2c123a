"""Queries by one model in a gallery by another: slow searches in float64 that follow the definitions."""

from typing import Any

import numpy as np
import pytest
import torch

from dml.data.table import ImageTable
from dml.evaluation import Evaluator
from dml.evaluation.metric import MetricConfig
from dml.runtime.errors import InputError

SEARCHED, RANKED = ("recall", "map@r"), ("recall", "map@r", "ap")


def make_table(labels: Any, split: Any, content: Any = None) -> ImageTable:
    labels = np.asarray(labels)
    table = ImageTable(
        paths=np.array([f"{row}.jpg" for row in range(len(labels))]),
        labels=labels[:, None] if labels.ndim == 1 else labels,
        split=np.array(np.broadcast_to(split, len(labels))),
        levels=("fine", "coarse")[: 1 if labels.ndim == 1 else 2],
    )
    return table if content is None else ImageTable(**(vars(table) | {"content": np.asarray(content)}))


def search(queries: Any, gallery: Any, labels: Any, searched: Any, rows: Any, excluded: Any) -> dict[str, list[float]]:
    """Recall@1, MAP@R and AP of each query among the rows of a gallery, without what the query excludes."""
    found: dict[str, list[float]] = {"recall@1": [], "map@r": [], "ap": []}
    for row in rows:
        items = [item for item in searched if item not in excluded(row)]
        cosines = [
            np.dot(queries[row], gallery[item]) / np.linalg.norm(queries[row]) / np.linalg.norm(gallery[item])
            for item in items
        ]
        right = [labels[items[place]] == labels[row] for place in np.argsort(-np.array(cosines), kind="stable")]
        total = sum(right)
        if not total:
            continue
        precisions = [sum(right[: place + 1]) / (place + 1) * right[place] for place in range(len(right))]
        found["recall@1"].append(float(right[0]))
        found["map@r"].append(sum(precisions[:total]) / total)
        found["ap"].append(sum(precisions) / total)
    return found


@pytest.mark.parametrize("metrics", [SEARCHED, RANKED])
@pytest.mark.parametrize("seed", range(3))
def test_a_query_excludes_the_other_embedding_of_its_own_image(metrics: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.stack([fine := rng.integers(0, 8, 40), fine // 3], axis=1)
    new = rng.normal(size=(40, 6))
    old = new + 0.5 * rng.normal(size=(40, 6))  # so an image's own embedding would be found first
    config = MetricConfig(metrics=metrics, recall_at=(1,), clustering=False)
    evaluated = Evaluator(make_table(labels, "test"), config).evaluate(new, gallery=old)
    for level in range(2):
        rows = range(40)
        expected = search(new, old, labels[:, level], rows, rows, lambda row: {row})
        for name in ("recall@1", "map@r", "ap")[: len(metrics)]:
            assert evaluated.metrics[f"level{level}/{name}"] == pytest.approx(np.mean(expected[name]), abs=1e-9)
            values = evaluated.lists[0].values[f"level{level}/{name}"]
            np.testing.assert_allclose(values[~np.isnan(values)], expected[name], atol=1e-9)


def test_queries_and_gallery_are_of_different_models_and_copies_excluded() -> None:
    rng = np.random.default_rng(5)
    labels, split = rng.integers(0, 4, 24), np.array(["query"] * 8 + ["gallery"] * 16)
    content = np.arange(24)
    content[8:12] = content[:4]  # the first queries are in the gallery, too
    new, old = rng.normal(size=(24, 5)), rng.normal(size=(24, 5))
    old[8:12] = new[:4]
    evaluator = Evaluator(make_table(labels, split, content), MetricConfig(metrics=SEARCHED, recall_at=(1,)))
    found = evaluator.evaluate(new, gallery=old).metrics
    expected = search(new, old, labels, range(8, 24), range(8), lambda row: {row + 8} if row < 4 else set())
    for name in ("recall@1", "map@r"):
        assert found[f"level0/{name}"] == pytest.approx(np.mean(expected[name]), abs=1e-9)
    old[:8] = rng.normal(size=(8, 5))  # what no query searches
    assert evaluator.evaluate(new, gallery=old).metrics == found


def test_a_models_own_gallery_is_the_plain_evaluation() -> None:
    rng = np.random.default_rng(6)
    labels, embeddings = rng.integers(0, 9, 60), rng.normal(size=(60, 4))
    embeddings[7] = embeddings[3]  # ties
    table = make_table(labels, "val")
    for metrics in (SEARCHED, (*RANKED, "ndcg", "nmi")):
        evaluator = Evaluator(table, MetricConfig(metrics=metrics))
        plain, crossed = (
            evaluator.evaluate(embeddings, neighbors=5),
            evaluator.evaluate(embeddings, gallery=embeddings, neighbors=5),
        )
        assert crossed.metrics == plain.metrics
        np.testing.assert_array_equal(crossed.lists[0].neighbors, plain.lists[0].neighbors)
    some = torch.arange(0, 60, 2)
    both = evaluator.evaluate(embeddings[some], some, gallery=embeddings[some]).metrics
    assert both == evaluator.evaluate(embeddings[some], some).metrics


def test_pairs_are_of_a_query_and_an_item_of_the_other_model() -> None:
    rng = np.random.default_rng(7)
    labels, new, old = rng.integers(0, 3, 12), rng.normal(size=(12, 4)), rng.normal(size=(12, 4))
    found = Evaluator(make_table(labels, "test"), MetricConfig(metrics=["eer"])).evaluate(new, gallery=old).metrics
    cosines = {True: [], False: []}  # type: dict[bool, list[float]]
    unit, old_unit = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (new, old))
    for i in range(12):
        for j in range(12):
            if i != j:
                cosines[bool(labels[i] == labels[j])].append(float(unit[i] @ old_unit[j]))
    same, other = np.array(cosines[True]), np.array(cosines[False])
    rates = [((other >= limit).mean(), (same < limit).mean()) for limit in sorted([*same, *other, 2.0])]
    low, high = max(rate for rate in rates if rate[0] <= rate[1]), min(rate for rate in rates if rate[0] >= rate[1])
    assert min(low[0], high[1]) - 1e-9 <= found["level0/eer"] <= max(low[1], high[0]) + 1e-9


def test_a_gallery_of_another_shape_is_told() -> None:
    evaluator = Evaluator(make_table([0, 0, 1], "test"), MetricConfig(metrics=SEARCHED))
    with pytest.raises(InputError, match=r"embeddings \(3, 4\) and gallery \(3, 5\): expected one shape"):
        evaluator.evaluate(np.ones((3, 4)), gallery=np.ones((3, 5)))
