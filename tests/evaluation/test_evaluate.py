import json
from pathlib import Path
from typing import Any

import metric_oracles as oracles
import numpy as np
import pytest
import torch
from devices import OnMPS

from dml.data.table import ImageTable
from dml.evaluation import Evaluator, MetricConfig, evaluate, evaluator, ranking
from dml.evaluation.metric import DEFAULT_METRICS
from dml.retrieval.rows import ranking_device
from dml.runtime.errors import InputError

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "metrics.json").read_text())


def cosines(query: Any, gallery: Any) -> Any:
    """(Q, G) float64; 0 where either is the zero vector."""

    def unit(rows: Any) -> Any:
        return [row / (np.sqrt((row**2).sum()) or 1.0) for row in np.asarray(rows, dtype=np.float64)]

    return np.array([[float(q @ g) for g in unit(gallery)] for q in unit(query)])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("alpha", [1.0, 3.0])
@pytest.mark.parametrize("memory", [1, 2**29])
def test_vectors(case: dict[str, Any], alpha: float, memory: int) -> None:
    given = {"query": np.array(case["query"]), "query_labels": np.array(case["query_labels"])}
    if not case["same"]:
        given |= {"gallery": np.array(case["gallery"]), "gallery_labels": np.array(case["gallery_labels"])}
    found = evaluate(**given, recall_at=(1, 2, 4, 8, 10), alpha=alpha, clustering=False, memory=memory)
    expected = case["expected"][f"alpha={alpha}"]
    assert len(expected) == 3 + 3 * 8
    for name, value in expected.items():
        metric, _, level = name.partition("/")
        assert found[f"{level}/{metric}" if level else metric] == pytest.approx(value, abs=1e-6), name


@pytest.fixture
def hundred() -> tuple[torch.Tensor, torch.Tensor]:
    """100 random embeddings of 20 classes in 4 super-classes, without ties."""
    labels = torch.arange(100) % 20
    return torch.from_numpy(np.random.default_rng(0).normal(size=(100, 8))), torch.stack([labels, labels % 4], dim=1)


def test_a_perfect_ranking_scores_one() -> None:
    labels = torch.arange(30) % 6
    found = evaluate(torch.eye(6)[labels], labels)
    assert found.pop("level0/queries_without_positives") == found.pop("queries_without_positives") == 0
    level = ("recall@1", "recall@2", "recall@4", "recall@8", "ap", "map@r", "r_precision", "nmi", "ami", "f1")
    assert set(found) == {*(f"level0/{metric}" for metric in level), "h_ap", "ndcg", "asi"}
    clusters = {f"level0/{metric}" for metric in ("nmi", "ami", "f1")}
    assert all(found[metric] == pytest.approx(1) for metric in found if metric not in clusters)


def test_separate_classes_are_clustered_perfectly() -> None:
    """Two classes: from any two different directions k-means finds them."""
    labels = torch.arange(30) % 2
    scatter = torch.linspace(-0.1, 0.1, 30)[:, None] * torch.tensor([0.0, 0.0, 1.0])
    found = evaluate(torch.eye(3)[labels] + scatter, labels, metrics=["nmi", "ami", "f1"])
    assert found == pytest.approx({"level0/nmi": 1.0, "level0/ami": 1.0, "level0/f1": 1.0})


def test_collapsed_embeddings_gain_nothing() -> None:
    """All the same: every query is answered with item 0, or item 0 with item 1, whatever its class."""
    labels = torch.arange(100) // 5
    alone = evaluate(torch.ones(100, 4), labels, metrics=["recall"], clustering=False)
    found = evaluate(torch.ones(100, 4), labels, clustering=False)
    assert alone["level0/recall@1"] == found["level0/recall@1"] == pytest.approx(0.05)


def test_length_of_embeddings_is_irrelevant(hundred: Any) -> None:
    embeddings, labels = hundred
    # powers of two scale without rounding, so that the clusters are the same to the last place as well
    lengths = 2.0 ** torch.from_numpy(np.random.default_rng(1).integers(-100, 100, size=(100, 1)))
    assert evaluate(embeddings * lengths, labels) == evaluate(embeddings, labels)


def test_same_seed_same_metrics_and_any_container(hundred: Any) -> None:
    embeddings, labels = hundred
    found = evaluate(embeddings, labels, seed=5)
    assert evaluate(embeddings.numpy(), labels.numpy(), seed=5) == found
    assert evaluate(embeddings.float().requires_grad_(), labels.int(), seed=5) == found
    assert all(type(value) is float for value in found.values())


def test_one_level_may_be_flat(hundred: Any) -> None:
    embeddings, labels = hundred
    both, flat = evaluate(embeddings, labels), evaluate(embeddings, labels[:, 0])
    assert {key: flat[key] for key in flat if "/" in key} == pytest.approx(
        {key: both[key] for key in both if key.startswith("level0/")}
    )
    assert flat["h_ap"] == pytest.approx(flat["level0/ap"])


def keys(*metrics: str) -> set[str]:
    return {f"level{level}/{metric}" for level in range(2) for metric in metrics}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ([], set()),
        (["recall"], keys("recall@5", "queries_without_positives")),
        (["ap", "map@r"], keys("ap", "map@r", "queries_without_positives")),
        (["h_ap", "asi"], {"h_ap", "asi", "queries_without_positives"}),
        (["nmi", "f1"], keys("nmi", "f1")),
        (["recall", "ndcg"], {*keys("recall@5", "queries_without_positives"), "ndcg", "queries_without_positives"}),
    ],
)
def test_only_what_is_asked_for_is_given(hundred: Any, metrics: list[str], expected: set[str]) -> None:
    found, everything = (
        evaluate(*hundred, recall_at=(5,), **asked) for asked in ({"metrics": metrics}, dict[str, Any]())
    )
    assert set(found) == expected
    assert found == pytest.approx({name: everything[name] for name in found})


def test_only_what_is_asked_for_is_computed(hundred: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **settings: Any) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(ranking, "Gallery", never)
    evaluate(*hundred, metrics=["recall", "nmi"])
    monkeypatch.setattr(ranking, "Search", never)
    evaluate(*hundred, metrics=["nmi"])
    evaluate(*hundred, metrics=["recall", "nmi"], recall_at=())
    monkeypatch.setattr(evaluator, "kmeans", never)
    assert evaluate(*hundred, metrics=["recall"], recall_at=()) == {}
    assert evaluate(*hundred, metrics=["nmi", "ami", "f1"], clustering=False) == {}


def test_the_geometric_mean_is_an_option(hundred: Any) -> None:
    arithmetic, geometric = (
        evaluate(*hundred, metrics=["nmi", "ami"], nmi_average=average) for average in ("arithmetic", "geometric")
    )
    assert all(geometric[name] > arithmetic[name] for name in arithmetic)


@pytest.mark.parametrize("count_query", [False, True])
def test_the_release_counts_the_query_among_its_items(hundred: Any, count_query: bool) -> None:
    embeddings, labels = hundred
    similarity, weights = cosines(embeddings, embeddings), (0.94, 0.06)
    expected: dict[str, list[float]] = {"h_ap": [], "sum_wap": []}
    for query in range(100):
        order = [j for j in np.argsort(-similarity[query], kind="stable") if j != query]
        levels = [int((labels[j] == labels[query]).sum()) for j in order]
        expected["h_ap"].append(oracles.h_ap(oracles.power_relevance(levels, 2, 1.0, count_query)))
        expected["sum_wap"].append(oracles.h_ap(oracles.weighted_ap_relevance(levels, weights, count_query)))
    settings: Any = {"metrics": [*expected], "count_query": count_query, "level_weights": weights}
    found = evaluate(embeddings, labels, **settings)
    assert [found[name] for name in expected] == pytest.approx([np.mean(v) for v in expected.values()], abs=1e-9)
    paths, split = np.array([f"{row}.jpg" for row in range(100)]), np.array(["test"] * 100)
    table = ImageTable(paths, labels.numpy(), split, ("class", "super-class"))
    assert Evaluator(table, MetricConfig(**settings))(embeddings, torch.arange(100)) == found


FOUR = torch.eye(4)
PAIRS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"query_labels": PAIRS[:3]}, "query_labels: 4 embeddings, 3 labels"),
        ({"gallery": FOUR}, "gallery_labels"),
        ({"gallery_labels": PAIRS}, "gallery_labels"),
        ({"gallery": FOUR, "gallery_labels": PAIRS[:1]}, "gallery_labels: 4 embeddings, 1 labels"),
        ({"gallery": torch.eye(5), "gallery_labels": torch.arange(5)}, "4 and 5"),
        ({"gallery": FOUR, "gallery_labels": torch.stack([PAIRS, PAIRS], 1)}, "1 and 2"),
        ({"query": FOUR[:0], "query_labels": PAIRS[:0]}, "query: "),
        ({"query": FOUR[:1], "query_labels": PAIRS[:1]}, "gallery: a query excludes all of its 1 items"),
        ({"query": FOUR[0]}, "query: "),
        ({"query": FOUR / 0}, "query: 4 of 4"),
        ({"gallery": FOUR * torch.nan, "gallery_labels": PAIRS}, "gallery: 4 of 4"),
        ({"query_labels": PAIRS.float()}, "query_labels: float32"),
        ({"query_labels": PAIRS.reshape(2, 2, 1, 1)}, "query_labels: shape"),
        ({"query_labels": torch.stack([PAIRS, torch.arange(4)], 1)}, "level1: none of the 4 queries"),
        ({"gallery": FOUR, "gallery_labels": PAIRS + 2}, "level0: none of the 4 queries"),
        ({"recall_at": (1, 0)}, "recall_at"),
        ({"metrics": ["recall", "map"]}, "metrics = 'map'"),
        ({"seed": -1}, "seed"),
        ({"alpha": float("nan")}, "alpha"),
        *[({"level_weights": weights}, "level_weights") for weights in (["abc"], [-1], [0])],
    ],
)
def test_errors(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        evaluate(**({"query": FOUR, "query_labels": PAIRS} | arguments))


def test_labels_of_different_integers_are_compared_exactly() -> None:
    """NumPy would compare int64 with uint64 after rounding."""
    labels = 2**60 + PAIRS.numpy()
    query, gallery = FOUR + 0.1 * FOUR.flip(0), 0.1 + FOUR
    expected = evaluate(query, labels, gallery, labels, metrics=["ap"])
    assert evaluate(query, labels, gallery, labels.astype(np.uint64), metrics=["ap"]) == expected
    assert expected["level0/ap"] < 1


@pytest.mark.parametrize("metrics", [DEFAULT_METRICS, ["recall"]])
@pytest.mark.parametrize("with_gallery", [False, True])
def test_embeddings_on_apples_gpu_are_ranked_on_cpu(metrics: Any, with_gallery: bool) -> None:
    """No such GPU here: tensors that refuse what it lacks, numpy and float64."""
    rng = np.random.default_rng(0)
    rows, labels = torch.from_numpy(rng.normal(size=(40, 8)).astype(np.float32)), rng.integers(0, 6, (40, 2))
    on_cpu, on_mps = rows, rows.as_subclass(OnMPS)
    with pytest.raises(TypeError, match="numpy"):
        on_mps.numpy()
    with pytest.raises(TypeError, match="float64"):
        on_mps.double()
    gallery = [(own[:20], labels[:20]) if with_gallery else () for own in (on_cpu, on_mps)]
    expected, found = (
        evaluate(own, labels, *others, metrics=metrics) for own, others in zip((on_cpu, on_mps), gallery, strict=True)
    )
    assert found == expected


@pytest.mark.parametrize(("kind", "expected"), [("cuda:1", "cuda:1"), ("mps", "cpu"), ("xpu", "cpu"), ("cpu", "cpu")])
def test_cuda_alone_ranks_by_itself(kind: str, expected: str) -> None:
    assert ranking_device(torch.device(kind)) == torch.device(expected)


def test_recall_at_may_be_numpys_numbers() -> None:
    for metrics in (["recall"], ["recall", "ap"]):
        values = evaluate(FOUR, PAIRS, metrics=metrics, recall_at=np.array([1, 2]))
        assert values == evaluate(FOUR, PAIRS, metrics=metrics, recall_at=(1, 2))
