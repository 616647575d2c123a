from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from image_tables import make_table

from dml.data.table import ImageTable
from dml.evaluation import Evaluator, evaluate, evaluate_table, rank_queries
from dml.retrieval.rows import UnitEmbeddings
from dml.runtime.errors import InputError

LEVELS = ("fine", "middle", "coarse")
FAST = {"recall_at": (1, 5), "clustering": False}


def table(labels: Any, split: Any, benchmark: Any = ()) -> ImageTable:
    return make_table(labels, split, levels=LEVELS, benchmark=np.array(benchmark, dtype=np.int64))


@pytest.fixture(scope="module")
def embeddings() -> Any:
    return np.random.default_rng(0).normal(size=(120, 8))


@pytest.fixture(scope="module")
def labels() -> Any:
    fine = np.random.default_rng(1).integers(0, 24, 120)
    return np.stack([fine, fine // 4, fine // 12], axis=1)


@pytest.mark.parametrize("split", ["test", "val", "train"])
def test_one_split_is_its_own_gallery(embeddings: Any, labels: Any, split: str) -> None:
    assert evaluate_table(embeddings, table(labels, split)) == evaluate(embeddings, labels)


@pytest.mark.parametrize("settings", [{}, FAST, {"metrics": ["asi", "nmi"], "seed": 3}])
def test_queries_look_for_the_gallery(embeddings: Any, labels: Any, settings: dict[str, Any]) -> None:
    split = np.where(np.arange(120) % 3 == 0, "query", "gallery")
    q, g = split == "query", split == "gallery"
    expected = evaluate(embeddings[q], labels[q], embeddings[g], labels[g], **settings)
    assert evaluate_table(embeddings, table(labels, split), **settings) == expected
    assert evaluate_table(torch.from_numpy(embeddings), table(labels, split), **settings) == expected


def judged(labels: Any, level: Any) -> Any:
    """Labels of one level alone."""
    return np.where(np.arange(3) == np.asarray(level)[:, None], labels, -1)


def with_content(whole: ImageTable, content: Any) -> ImageTable:
    return replace(whole, content=np.asarray(content))


@pytest.mark.parametrize("settings", [FAST, {"metrics": ["recall"], "recall_at": (1, 3)}])
def test_a_query_excludes_itself_under_another_name(embeddings: Any, labels: Any, settings: dict[str, Any]) -> None:
    """Queries that are copies of every second gallery image -> as if these were a gallery without the query."""
    split = np.repeat(["gallery", "query"], [80, 40])
    embeddings, labels = embeddings.copy(), labels.copy()
    embeddings[80:], labels[80:] = embeddings[:80:2], labels[:80:2]
    content = np.concatenate([np.arange(80), np.arange(0, 80, 2)])
    found = evaluate_table(embeddings, with_content(table(labels, split), content), **settings)
    plain = evaluate_table(embeddings, table(labels, split), **settings)
    assert plain["level0/recall@1"] == 1  # each query finds itself
    own = rank_queries(embeddings[:80], labels[:80], **{k: v for k, v in settings.items() if k != "clustering"})
    for name, values in own.values.items():
        assert found[name] == pytest.approx(np.nanmean(values[::2])), name
    assert found["level0/recall@1"] < 0.9
    dropped = evaluate_table(embeddings, table(labels, split), exclude_nearest=True, **settings)
    assert {name: value for name, value in dropped.items() if "nmi" not in name} == pytest.approx(found)


def test_copies_count_in_their_own_list_alone(embeddings: Any, labels: Any) -> None:
    level, split = np.arange(120) % 3, np.where(np.arange(120) % 5 < 2, "query", "gallery")
    lists = table(judged(labels, level), split, level)
    content = np.full(120, -1)
    query, other = (np.flatnonzero((level == b) & (split == name))[0] for b, name in ((0, "query"), (1, "gallery")))
    content[[query, other]] = 5
    assert evaluate_table(embeddings, with_content(lists, content), **FAST) == evaluate_table(embeddings, lists, **FAST)


def renamed(found: dict[str, float], level: int) -> dict[str, float]:
    return {f"level{level}/{name.rpartition('/')[2]}": value for name, value in found.items()}


def assert_means(found: dict[str, float]) -> None:
    names = {name.partition("/")[2] for name in found if name.startswith("level")} - {"queries_without_positives"}
    assert {name for name in found if not name.startswith("level")} == {f"mean/{name}" for name in names}
    for name in names:
        assert found[f"mean/{name}"] == pytest.approx(np.mean([found[f"level{level}/{name}"] for level in range(3)]))


@pytest.mark.parametrize("settings", [{}, FAST, {"metrics": ["ap", "asi"], "clustering": True}])
def test_three_benchmarks(embeddings: Any, labels: Any, settings: dict[str, Any]) -> None:
    level, split = np.arange(120) % 3, np.where(np.arange(120) % 5 < 2, "query", "gallery")
    found = evaluate_table(embeddings, table(judged(labels, level), split, level), **settings)
    for b in range(3):
        q, g = ((level == b) & (split == name) for name in ("query", "gallery"))
        own = evaluate(embeddings[q], labels[q, b], embeddings[g], labels[g, b], **settings)
        assert renamed(own, b).items() <= found.items()
    assert_means(found)


def test_one_list_at_each_level(embeddings: Any, labels: Any) -> None:
    level = np.repeat(np.arange(3), 120)
    repeated = table(judged(np.tile(labels, (3, 1)), level), "test", level)
    found = evaluate_table(np.tile(embeddings, (3, 1)), repeated, **FAST)
    for b in range(3):
        assert renamed(evaluate(embeddings, labels[:, b], **FAST), b).items() <= found.items()
    assert_means(found)


def test_rows_of_every_level_are_in_every_list(embeddings: Any, labels: Any) -> None:
    """A gallery that all benchmarks share."""
    level = np.where(np.arange(120) < 60, np.arange(120) % 3, -1)
    split = np.where(np.arange(120) < 60, "query", "gallery")
    found = evaluate_table(embeddings, table(labels, split, level), **FAST)
    for b in range(3):
        own = evaluate(embeddings[:60][b::3], labels[:60][b::3, b], embeddings[60:], labels[60:, b], **FAST)
        assert renamed(own, b).items() <= found.items()


def test_a_benchmark_where_nothing_is_to_be_found_is_named(embeddings: Any, labels: Any) -> None:
    level, split = np.arange(120) % 3, np.where(np.arange(120) < 60, "query", "gallery")
    labels = labels + 100 * (np.arange(3) == 2) * (split == "query")[:, None]
    with pytest.raises(InputError, match="level2: none of the 20 queries has a positive"):
        evaluate_table(embeddings, table(judged(labels, level), split, level), **FAST)


def test_a_benchmark_without_a_query_is_named(embeddings: Any, labels: Any) -> None:
    level = np.arange(120) % 3
    split = np.where(level == 2, "gallery", np.where(np.arange(120) < 60, "query", "gallery"))
    with pytest.raises(InputError, match="level2: none of the 0 queries has a positive"):
        evaluate_table(embeddings, table(judged(labels, level), split, level), recall_at=(1,))


def test_queries_and_neighbors_are_rows_of_the_table(embeddings: Any, labels: Any) -> None:
    level, split = np.arange(120) % 3, np.where(np.arange(120) % 5 < 2, "query", "gallery")
    lists = Evaluator(table(judged(labels, level), split, level)).evaluate(embeddings, neighbors=4).lists
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    assert len(lists) == 3
    for b, ranked in enumerate(lists):
        assert ranked.queries.tolist() == np.flatnonzero((level == b) & (split == "query")).tolist()
        gallery = np.flatnonzero((level == b) & (split == "gallery"))
        cosines = unit[ranked.queries] @ unit[gallery].T
        assert np.array_equal(ranked.neighbors, gallery[np.argsort(-cosines, axis=1)[:, :4]])
        assert {name.partition("/")[0] for name in ranked.values} == {f"level{b}"}


@pytest.mark.parametrize(
    ("split", "rows"),
    [(["train", "test"], 2), (["query", "query"], 2), (["query", "test"], 2), (["", ""], 2), (["test", "test"], 3)],
)
def test_errors(split: list[str], rows: int) -> None:
    with pytest.raises(InputError):
        evaluate_table(np.eye(rows), table(np.zeros((2, 3), dtype=int), split))


def test_rows_are_taken_only_if_some_are_missing() -> None:
    labels = np.arange(12)[:, None] // 3
    table = ImageTable(np.array([f"{row}.jpg" for row in range(12)]), labels, np.full(12, "val"), ("class",))
    whole = Evaluator(table)
    embeddings, rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(2, 12)
    with patch.object(ImageTable, "take", side_effect=AssertionError):
        assert whole(embeddings, torch.arange(12)) == whole(embeddings)
    assert whole(embeddings[2:], rows) == Evaluator(table.take(rows.numpy()))(embeddings[2:])
    reversed_rows = torch.arange(12).flip(0)
    assert whole(embeddings.flip(0), reversed_rows)["level0/ap"] == pytest.approx(whole(embeddings)["level0/ap"])


def test_unit_embeddings_are_normalized_once() -> None:
    unit = UnitEmbeddings.normalize(np.array([[3.0, 4.0], [0.0, 0.0]]))
    assert torch.equal(unit.rows, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert UnitEmbeddings.normalize(unit) is unit
