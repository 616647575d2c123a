"""Metrics of images with several labels, against loops: an item is right if it shares a label with the query."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml.data.table import ImageTable
from dml.evaluation import evaluate
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import MetricConfig
from dml.evaluation.per_query import join_lists, read_queries, write_queries
from dml.evaluation.ranking import rank_queries
from dml.evaluation.threshold import choose_pair_threshold, compute_threshold_errors, find_nearest
from dml.metrics.pairs import LabeledPairs
from dml.metrics.verification import PairVerification, opis

K = (1, 2, 4)


def draw(seed: int, images: int, levels: int = 2, width: int = 3, labels: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Draw distinct embeddings and sets of one label or more, padded with -1 at any places."""
    rng = np.random.default_rng(seed)
    sets = rng.integers(-1, labels, (images, levels, width))
    sets[:, :, 1] = np.where((sets < 0).all(axis=2), 0, sets[:, :, 1])
    embeddings = rng.normal(size=(images, 6))
    return (embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)).astype(np.float32), sets


def shares(first: np.ndarray, second: np.ndarray) -> bool:
    return bool(({*first.tolist()} - {-1}) & ({*second.tolist()} - {-1}))


def loop_metrics(
    query: np.ndarray, sets: np.ndarray, items: np.ndarray, item_sets: np.ndarray, excluded: list[set[int]]
) -> dict[str, float]:
    """Recall, AP, MAP@R, R-precision and H-AP (with equal weights of a level's items), each by its definition."""
    depth = sets.shape[1]
    values: dict[str, list[float]] = {}
    for q in range(len(query)):
        ranking = [i for i in np.argsort(-(items @ query[q]), kind="stable") if i not in excluded[q]]
        level_of = {i: [shares(sets[q, level], item_sets[i, level]) for level in range(depth)] for i in ranking}
        for level in range(depth):
            hits = [level_of[i][level] for i in ranking]
            if not (count := sum(hits)):
                continue
            precision = [sum(hits[: r + 1]) / (r + 1) for r in range(len(hits))]
            found = {f"recall@{k}": float(any(hits[:k])) for k in K}
            found["ap"] = sum(p for p, hit in zip(precision, hits, strict=True) if hit) / count
            found["map@r"] = sum(p for p, hit in zip(precision[:count], hits, strict=False) if hit) / count
            found["r_precision"] = sum(hits[:count]) / count
            for name, value in found.items():
                values.setdefault(f"level{level}/{name}", []).append(value)
        numbers = [sum(level_of[i]) for i in ranking]
        counts = [numbers.count(number) for number in range(depth + 1)]
        relevance = [number / depth / counts[number] if number else 0.0 for number in numbers]
        if sum(relevance):
            gained = sum(
                sum(min(relevance[j], relevance[k]) for j in range(k + 1)) / (k + 1) for k in range(len(ranking))
            )
            values.setdefault("h_ap", []).append(gained / sum(relevance))
    return {name: float(np.mean(column)) for name, column in values.items()}


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_metrics_are_those_of_a_loop(seed: int, has_gallery: bool) -> None:
    query, sets = draw(seed, 14)
    items, item_sets = draw(seed + 1, 19, width=2) if has_gallery else (query, sets)
    excluded = [set() if has_gallery else {q} for q in range(len(query))]
    expected = loop_metrics(query, sets, items, item_sets, excluded)
    gallery = (items, item_sets) if has_gallery else ()
    metrics = evaluate(query, sets, *gallery, recall_at=K)
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, abs=1e-9), name
    searched = evaluate(query, sets, *gallery, recall_at=K, metrics=["recall", "map@r", "r_precision"])
    assert searched == {name: value for name, value in metrics.items() if name in searched}
    assert not any(name.endswith(("nmi", "ami", "f1")) for name in metrics)


def test_excluded_items_and_queries_without_positives() -> None:
    query, sets = draw(3, 12)
    items, item_sets = draw(4, 15)
    sets[0], sets[1, 1] = [[90, -1, -1], [91, 92, -1]], [-1, -1, 93]
    excluded = np.array([[q, (q + 5) % 15, -1] for q in range(12)])
    ranked = rank_queries(query, sets, items, item_sets, excluded=excluded, recall_at=K)
    expected = loop_metrics(query, sets, items, item_sets, [{*row.tolist()} - {-1} for row in excluded])
    for name, value in expected.items():
        assert np.nanmean(ranked.values[name]) == pytest.approx(value, abs=1e-9), name
    assert not ranked.has_positive[""][0]
    assert not ranked.has_positive["level1"][1]


@pytest.mark.parametrize("metrics", [None, ["recall", "map@r"]])
def test_ids_in_sets_of_one_give_the_same_bits(metrics: list[str] | None) -> None:
    embeddings, _ = draw(5, 40)
    labels = np.random.default_rng(5).integers(0, 6, (40, 2))
    chosen = {} if metrics is None else {"metrics": metrics}
    plain = evaluate(embeddings, labels, clustering=False, **chosen)
    padded = np.stack([np.full_like(labels, -1), labels], axis=2)
    assert evaluate(embeddings, labels[:, :, None], **chosen) == plain
    assert evaluate(embeddings, padded, **chosen) == plain


def loop_pairs(sets: np.ndarray, embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(i, j) for i in range(len(sets)) for j in range(i + 1, len(sets))]
    similarities = np.array([embeddings[i] @ embeddings[j] for i, j in pairs])
    return similarities, np.array([shares(sets[i], sets[j]) for i, j in pairs])


def test_pairs_of_one_class_share_a_label() -> None:
    embeddings, sets = draw(6, 60, levels=1, labels=20)
    similarities, is_same = loop_pairs(sets[:, 0], embeddings)
    pairs = LabeledPairs(torch.from_numpy(embeddings), sets[:, 0])
    assert pairs.counts.positives[0] == is_same.sum()
    assert pairs.counts.negatives[0] == (~is_same).sum()
    threshold = choose_pair_threshold(pairs, 0.1)
    errors = compute_threshold_errors(pairs, threshold)
    assert {*errors} == {"fmr", "fnmr", "balanced_accuracy"}
    accepted = similarities >= np.float32(threshold)
    assert errors["fmr"] == pytest.approx(accepted[~is_same].mean(), abs=1e-12)
    assert errors["fnmr"] == pytest.approx(1 - accepted[is_same].mean(), abs=1e-12)
    assert errors["fmr"] <= 0.1
    assert np.isnan(opis(pairs, PairVerification(pairs).rates))


def test_the_nearest_item_is_known_by_a_shared_label() -> None:
    embeddings, sets = draw(7, 30, levels=1)
    nearest = find_nearest(LabeledPairs(torch.from_numpy(embeddings), sets[:, 0]))
    similarities = embeddings @ embeddings.T - 9 * np.eye(len(sets))
    same = np.array([[shares(a, b) for b in sets[:, 0]] for a in sets[:, 0]])
    assert nearest.is_right[nearest.is_known].tolist() == [same[q, similarities[q].argmax()] for q in range(len(sets))]
    others = np.where(same, -np.inf, similarities).max(axis=1)
    np.testing.assert_allclose(nearest.scores[~nearest.is_known], others[np.isfinite(others)], atol=1e-6)


def make_table(cells: list[str], split: str = "test") -> ImageTable:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"path": [f"{row}.png" for row in range(len(cells))], "label": cells, "split": split})
    return ImageTable.from_frame(frame, separator="|")


def test_a_table_is_evaluated_by_the_labels_of_its_cells(tmp_path) -> None:  # type: ignore[no-untyped-def]
    cells = ["a|b", "b", "a", "c|d", "d", "c", "e|a", "e"]
    table = make_table(cells)
    embeddings, _ = draw(8, len(cells))
    sets = table.label_sets
    metrics = Evaluator(table, MetricConfig(recall_at=K))(embeddings)
    expected = loop_metrics(embeddings, sets, embeddings, sets, [{q} for q in range(len(cells))])
    for name in ("level0/recall@1", "level0/ap", "level0/map@r"):
        assert metrics[name] == pytest.approx(expected[name], abs=1e-9)
    lists = Evaluator(table).evaluate(embeddings, neighbors=4).lists
    described = {"levels": table.levels, "names": table.names, "separator": table.separator}
    queries = join_lists(table, lists, 4, **described)
    write_queries(tmp_path / "q.parquet", queries)
    read = read_queries(tmp_path / "q.parquet")
    same = [
        [{*cells[q].split("|")} & {*name.split("|")} != set() for name in row]
        for q, row in enumerate([[read.class_name(label) for label in labels[:, 0]] for labels in read.neighbor_labels])
    ]
    assert (read.find_shared_levels() == 0).tolist() == same
    assert read.separator == "|"
