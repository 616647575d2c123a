from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dml.data.table import ImageTable, find_equal, find_faults
from dml.evaluation import Evaluator, MetricConfig, PerQuery, rank_queries
from dml.evaluation.items import pad_pairs
from dml.runtime.errors import InputError

METRICS = (["recall"], ["recall", "ap", "map@r", "r_precision", "h_ap", "ndcg", "asi"])


def random_lists(seed: int, queries: int, gallery: int) -> tuple[Any, Any, Any, Any]:
    """Corners of a cube, whose cosines tie, and labels that are no tree."""
    rng = np.random.default_rng(seed)
    embeddings = rng.choice([-1.0, 1.0], size=(queries + gallery, 4))
    labels = rng.integers(0, 3, size=(queries + gallery, 2))
    return embeddings[:queries], labels[:queries], embeddings[queries:], labels[queries:]


def assert_same(found: PerQuery, query: int, expected: PerQuery, kept: Any) -> None:
    """That a query scores and finds what it does alone, in the gallery of the items that it keeps."""
    for name, values in expected.values.items():
        assert found.values[name][query] == pytest.approx(values[0], abs=1e-12, nan_ok=True), name
    nearest = min(found.neighbors.shape[1], expected.neighbors.shape[1])
    assert found.neighbors[query, :nearest].tolist() == kept[expected.neighbors[0, :nearest]].tolist()


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(4, 60), st.integers(0, 3), st.sampled_from(METRICS))
@examples(60)
def test_an_excluded_item_might_as_well_not_be_there(
    seed: int, queries: int, items: int, most: int, metrics: list[str]
) -> None:
    query, query_labels, gallery, gallery_labels = random_lists(seed, queries, items)
    rng = np.random.default_rng(seed)
    excluded = np.array([rng.permutation(items)[:most] for _ in range(queries)])
    excluded[rng.random(excluded.shape) < 0.3] = -1
    asked: dict[str, Any] = {"metrics": metrics, "recall_at": (1, 3), "neighbors": 5, "memory": 1}
    found = rank_queries(query, query_labels, gallery, gallery_labels, excluded=excluded, **asked)
    for i in range(queries):
        kept = np.setdiff1d(np.arange(items), excluded[i])
        one = query[i : i + 1], query_labels[i : i + 1], gallery[kept], gallery_labels[kept]
        assert_same(found, i, rank_queries(*one, **asked), kept)


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.sampled_from(METRICS))
@examples(30)
def test_queries_that_exclude_themselves_are_their_own_gallery(seed: int, queries: int, metrics: list[str]) -> None:
    query, labels, _, _ = random_lists(seed, queries, 1)
    own = np.arange(queries)[:, None]
    found = rank_queries(query, labels, query, labels, excluded=own, metrics=metrics, neighbors=3)
    expected = rank_queries(query, labels, metrics=metrics, neighbors=3)
    assert np.array_equal(found.neighbors, expected.neighbors)
    for name, values in expected.values.items():
        assert np.array_equal(found.values[name], values, equal_nan=True), name


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.booleans(), st.sampled_from(METRICS))
@examples(60)
def test_the_releases_rule_drops_the_first_of_the_ranking(
    seed: int, queries: int, alone: bool, metrics: list[str]
) -> None:
    query, query_labels, gallery, gallery_labels = random_lists(seed, queries, 30)
    if alone:
        gallery, gallery_labels = query, query_labels
    whole = rank_queries(query, query_labels, gallery, gallery_labels, metrics=metrics, neighbors=len(gallery))
    given_ = (query, query_labels) if alone else (query, query_labels, gallery, gallery_labels)
    found = rank_queries(*given_, metrics=metrics, neighbors=len(gallery), exclude_nearest=True, memory=1)
    assert found.neighbors.tolist() == whole.neighbors[:, 1:].tolist()
    excluded = rank_queries(
        query, query_labels, gallery, gallery_labels, metrics=metrics, excluded=whole.neighbors[:, :1]
    )
    for name, values in excluded.values.items():
        assert found.values[name] == pytest.approx(values, abs=1e-12, nan_ok=True), name


def test_shares_drop_the_first_of_the_ranking_alike() -> None:
    query, query_labels, gallery, gallery_labels = random_lists(0, 100, 30)
    asked: dict[str, Any] = {"exclude_nearest": True, "memory": 1, "neighbors": 4}
    whole = rank_queries(query, query_labels, gallery, gallery_labels, **asked)
    parts = [rank_queries(query, query_labels, gallery, gallery_labels, share=(i, 2), **asked) for i in range(2)]
    joined = PerQuery.join(parts)
    assert np.array_equal(joined.neighbors, whole.neighbors)
    for name, values in whole.values.items():
        assert np.array_equal(joined.values[name], values, equal_nan=True), name


@pytest.mark.parametrize(
    ("queries", "gallery", "expected"),
    [
        ([5, 7, -1, 9], [7, -1, 5, 7, 3], [[2, -1], [0, 3], [-1, -1], [-1, -1]]),
        ([5, 6], [1, 2], np.empty((2, 0))),
        ([-1, -1], [-1, -1], np.empty((2, 0))),
        ([3], [3], [[0]]),
    ],
)
def test_find_copies(queries: list[int], gallery: list[int], expected: Any) -> None:
    found = pad_pairs(find_equal(np.array(queries), np.array(gallery)), len(queries))
    assert found.dtype == np.int64
    assert np.array_equal(found, np.array(expected))


def judged_table(seed: int) -> tuple[Any, ImageTable]:
    """Queries and a gallery in a mixed order, random exclusions and some copies, which may be excluded twice."""
    rng = np.random.default_rng(seed)
    split = rng.permutation(np.repeat(["query", "gallery", "train"], [12, 20, 4]))
    queries, gallery = (np.flatnonzero(split == name) for name in ("query", "gallery"))
    pairs = [(query, item) for query in queries for item in rng.permutation(gallery)[: rng.integers(0, 5)]]
    table = ImageTable(
        paths=np.array([f"{i}.jpg" for i in range(36)]),
        labels=rng.integers(0, 3, size=(36, 2)),
        split=split,
        levels=("fine", "coarse"),
        content=rng.integers(-1, 12, size=36),
        excluded=rng.permutation(np.array(pairs, dtype=np.int64)),
    )
    return rng.normal(size=(36, 3)), table


@pytest.mark.parametrize("seed", range(5))
def test_pairs_of_a_table_and_copies_are_excluded(seed: int) -> None:
    """Also of a table whose rows are others, in another order."""
    embeddings, whole = judged_table(seed)
    rows = np.random.default_rng(seed).permutation(36)[:30]
    pairs = {tuple(pair) for pair in whole.excluded.tolist()}
    table = whole.take(rows).select_evaluated("test")
    rows = rows[np.isin(whole.split[rows], ("query", "gallery"))]
    (ranked,) = Evaluator(table, MetricConfig(metrics=["ap"])).evaluate(embeddings[rows], neighbors=20).lists
    unit = embeddings[rows] / np.linalg.norm(embeddings[rows], axis=1, keepdims=True)
    for query, neighbors in zip(ranked.queries, ranked.neighbors, strict=True):
        kept = [
            item
            for item in np.flatnonzero(table.split == "gallery")
            if (rows[query], rows[item]) not in pairs and not table.content[query] == table.content[item] >= 0
        ]
        expected = sorted(kept, key=lambda item, query=query: -unit[query] @ unit[item])
        nearest = min(len(neighbors), len(expected))
        assert neighbors[:nearest].tolist() == expected[:nearest]


@pytest.mark.parametrize("pairs", [[[0, 36]], [[-1, 0]], [[0, 1, 2]], [3]])
def test_pairs_that_are_no_rows(pairs: Any) -> None:
    _, table = judged_table(0)
    with pytest.raises(InputError, match=r"image table: excluded \(.*\) isn't pairs of rows of the table"):
        replace(table, excluded=np.array(pairs))


def test_an_image_may_be_in_the_gallery_twice_if_each_query_meets_it_once() -> None:
    table = ImageTable(
        paths=np.array(["a", "b", "x", "x"]),
        labels=np.array([[0], [1], [0], [1]]),
        split=np.array(["query", "query", "gallery", "gallery"]),
        levels=("class",),
    )
    twice = ["image x is there 2 times, in the gallery split"]
    assert [*find_faults(table)] == twice
    assert [*find_faults(replace(table, excluded=np.array([[0, 3]])))] == twice
    assert not [*find_faults(replace(table, excluded=np.array([[0, 3], [1, 2]])))]


def test_a_query_keeps_at_least_one_item() -> None:
    with pytest.raises(InputError, match="gallery: a query excludes all of its 2 items, at least 1 must be left"):
        rank_queries(np.eye(2), np.arange(2), np.eye(2), np.arange(2), excluded=np.array([[0, 1], [0, -1]]))
