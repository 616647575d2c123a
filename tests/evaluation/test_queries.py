from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import metric_oracles as oracles
import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml.evaluation import MetricConfig, PerQuery, query_share, rank_queries
from dml.evaluation.items import Items, Positives, check_query_and_gallery
from dml.evaluation.ranking import MOST_SEARCHED, Ranking
from dml.retrieval.gallery import Gallery
from dml.retrieval.search import BlockSearch, Search

RANKING = ("recall", "ap", "map@r", "r_precision", "h_ap", "ndcg", "asi")
NEAREST = ("recall", "map@r", "r_precision")
"""The metrics for which the nearest items are enough."""
RECALL_AT = (1, 3, 30)


@st.composite
def items(draw: Any, most: int, depth: int = 2) -> tuple[Any, Any]:
    """Corners of a cube and the origin, whose cosines are exact in float32 and tie; labels of a tree, or any."""
    number = draw(st.integers(2, most))
    corners = draw(hnp.arrays(np.int64, (number, 4), elements=st.sampled_from([-1, 1])))
    origin = draw(hnp.arrays(np.bool_, (number, 1)))
    labels = draw(hnp.arrays(np.int64, (number, depth), elements=st.integers(0, draw(st.integers(0, 4)))))
    if draw(st.booleans()):
        labels = labels[:, :1] >> np.arange(depth)
    return np.where(origin & (draw(st.booleans())), 0, corners), labels


def rankings(query: Any, gallery: Any | None) -> list[list[int]]:
    """The gallery's indices for each query, nearest first, ties by index."""
    others = query if gallery is None else gallery
    lengths = [np.sqrt((rows**2).sum(axis=1)) for rows in (query, others)]
    cosines = (query @ others.T) / np.maximum(np.outer(*lengths), 1)
    return [
        sorted((j for j in range(len(others)) if gallery is not None or j != i), key=lambda j: (-row[j], j))
        for i, row in enumerate(cosines.tolist())
    ]


def expected_values(levels: list[int], same: Any) -> dict[str, float]:
    """Of a ranking's shared levels and (N, L) which they are."""
    values = {}
    for level, relevant in enumerate(same.T.tolist()):
        if any(relevant):
            values |= {f"level{level}/recall@{k}": oracles.recall(relevant, k) for k in RECALL_AT}
            values[f"level{level}/ap"] = oracles.average_precision(relevant)
            values[f"level{level}/map@r"] = oracles.map_at_r(relevant)
            values[f"level{level}/r_precision"] = oracles.r_precision(relevant)
    if any(levels):
        values["h_ap"] = oracles.h_ap(oracles.power_relevance(levels, same.shape[1], 2.0))
        values |= {"ndcg": oracles.ndcg(levels), "asi": oracles.asi(levels)}
    return values


def assert_agrees(ranked: PerQuery, queries: Any, gallery: Any | None) -> None:
    others = queries if gallery is None else gallery
    for query, ranking in enumerate(rankings(queries[0], None if gallery is None else gallery[0])):
        same = others[1][ranking] == queries[1][query]
        expected = expected_values(same.sum(axis=1).tolist(), same)
        for name, values in ranked.values.items():
            assert values[query] == pytest.approx(expected.get(name, np.nan), abs=1e-12, nan_ok=True), name
        assert ranked.neighbors[query].tolist() == ranking[: ranked.neighbors.shape[1]]


@given(
    st.sampled_from([1, 3, 8]).flatmap(
        lambda depth: st.tuples(items(40, depth=depth), st.none() | items(60, depth=depth))
    ),
    st.integers(0, 70),
    st.sampled_from([RANKING, ["recall"], NEAREST, ["map@r"], ["ap", "asi"]]),
)
@examples(120)
def test_agrees_with_definitions(sides: Any, neighbors: int, metrics: Sequence[str]) -> None:
    queries, gallery = sides
    given_ = (*queries, *(gallery or ()))
    ranked = rank_queries(*given_, metrics=metrics, recall_at=RECALL_AT, alpha=2.0, neighbors=neighbors, memory=1)
    number = len(queries[0])
    assert ranked.neighbors.shape == (number, min(neighbors, number - 1 if gallery is None else len(gallery[0])))
    assert_agrees(ranked, queries, gallery)


def ranking_of(
    queries: Any, gallery: Any | None, neighbors: int, metrics: Sequence[str] = RANKING, excluded: Any = None
) -> Ranking:
    query_items, gallery_items = check_query_and_gallery(*queries, *(gallery or (None, None)))
    positives = Positives(query_items.labels, None if gallery_items is None else gallery_items.labels, excluded)
    config = MetricConfig(metrics, RECALL_AT, alpha=2.0)
    return Ranking(query_items, gallery_items or query_items, positives, config, neighbors)


def join(blocks: Any, part: str) -> torch.Tensor:
    return torch.cat([block.scores[part] if part in block.scores else getattr(block, part) for block in blocks])


@given(st.sampled_from([1, 3, 10]).flatmap(lambda depth: st.tuples(items(40, depth), st.none() | items(60, depth))))
@examples(80)
def test_a_device_ranks_as_threads_do(sides: Any) -> None:
    """No GPU here: the same tensor functions on CPU; ten levels are more than a byte has bits."""
    queries, gallery = sides
    ranking = ranking_of(queries, gallery, neighbors=1)
    threads, device = (
        list(way(range(len(queries[0])), 32)) for way in (ranking._rank_by_threads, ranking._rank_on_device)
    )
    for part in ("neighbors", "similarities"):
        assert torch.equal(join(threads, part), join(device, part))
    has_positive = ranking.positives.find_queries_with_any(range(len(queries[0])))
    for name in threads[0].scores:
        defined = torch.from_numpy(has_positive[name.rpartition("/")[0]])
        first, second = join(threads, name)[defined], join(device, name)[defined]
        torch.testing.assert_close(first, second, atol=1e-12, rtol=0)


@given(items(40, depth=3), st.none() | items(60, depth=3), st.integers(0, 2**32 - 1), st.sampled_from([None, 0, 1, 2]))
@examples(80)
def test_searches_find_what_threads_do(queries: Any, gallery: Any, seed: int, most: int | None) -> None:
    """By FAISS, and by the tensor functions of a GPU, with many ties and with queries that exclude some items."""
    count, size, excluded = len(queries[0]), len((gallery or queries)[0]), None
    if most is not None:
        rng = np.random.default_rng(seed)
        excluded = np.array([rng.permutation(size)[: min(most, size - 1)] for _ in range(count)], dtype=np.int64)
        excluded[rng.random(excluded.shape) < 0.3] = -1
    ranking = ranking_of(queries, gallery, 1, NEAREST, excluded)
    assume(ranking._needs_only_search)
    expected = list(ranking._rank_by_threads(range(count), 32))
    for search in (Search, BlockSearch):
        with patch("dml.evaluation.ranking.Search", search):
            found = list(ranking.rank_blocks(range(count), 64))
        assert torch.equal(join(found, "neighbors"), join(expected, "neighbors"))
        torch.testing.assert_close(join(found, "similarities"), join(expected, "similarities"), atol=1e-6, rtol=0)
        for name in expected[0].scores:
            assert torch.equal(join(found, name).nan_to_num(-1), join(expected, name).nan_to_num(-1)), name


@pytest.mark.parametrize(
    ("is_cuda", "metrics", "size", "way"),
    [
        (True, NEAREST, 40, "_rank_by_search"),  # as validations ask for: no sort of all distances
        (False, ["recall"], 40, "_rank_by_search"),
        (False, NEAREST, MOST_SEARCHED + 2, "_rank_by_threads"),
        (False, RANKING, 40, "_rank_by_threads"),
        (True, RANKING, 40, "_rank_on_device"),
    ],
)
def test_only_what_needs_whole_rankings_ranks_all(is_cuda: bool, metrics: Sequence[str], size: int, way: str) -> None:
    device: Any = SimpleNamespace(is_cuda=is_cuda)
    queries = Items(device, np.zeros((size, 1), dtype=int))
    config = MetricConfig(metrics, RECALL_AT)
    ranked: Any = Ranking(queries, queries, Positives(queries.labels, None), config, 1).rank_blocks(range(2), 2)
    assert ranked.__name__ == way


@pytest.fixture(scope="module")
def thousand() -> tuple[Any, Any]:
    """1,000 embeddings of 100 classes in 8 super-classes, in a random order; 30 of them are copies of others."""
    rng = np.random.default_rng(0)
    fine = rng.integers(0, 100, 1000)
    embeddings = rng.normal(size=(100, 16))[fine] + rng.normal(size=(1000, 16))
    embeddings[rng.choice(1000, 30, replace=False)] = embeddings[rng.choice(1000, 30, replace=False)]
    return embeddings, np.stack([fine, fine % 8], axis=1)


def assert_same(one: PerQuery, other: PerQuery) -> None:
    """Bit for bit."""
    assert one.values.keys() == other.values.keys()
    for name, values in one.values.items():
        assert values.tobytes() == other.values[name].tobytes(), name
    for part in ("queries", "neighbors", "similarities"):
        first, second = getattr(one, part), getattr(other, part)
        assert (first.shape, first.dtype, first.tobytes()) == (second.shape, second.dtype, second.tobytes())


@pytest.mark.parametrize("metrics", [RANKING, ["recall"], NEAREST])
@pytest.mark.parametrize("world", [1, 7, 100])
def test_all_shares_are_the_whole(thousand: Any, metrics: Sequence[str], world: int) -> None:
    asked = {"metrics": metrics, "neighbors": 5, "memory": 4 * 1000 * 64}  # 64 queries at a time
    parts = [rank_queries(*thousand, share=(rank, world), **asked) for rank in range(world)]
    assert_same(PerQuery.join(parts), rank_queries(*thousand, **asked))
    shares = [query_share(1000, 1000, (rank, world), asked["memory"]) for rank in range(world)]
    assert [list(share) for share in shares] == [part.queries.tolist() for part in parts]
    assert [query for share in shares for query in share] == list(range(1000))
    assert all(share.start % 64 == 0 for share in shares if share)
    assert max(map(len, shares)) - min(map(len, shares)) <= 64 + 64


def test_the_size_of_a_block_is_what_memory_allows_and_changes_nothing(
    thousand: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, distances = [], Gallery.distances

    def counted(self: Gallery, queries: torch.Tensor, *others: Any) -> torch.Tensor:
        rows.append(len(queries))
        return distances(self, queries, *others)

    once = rank_queries(*thousand, neighbors=5)
    monkeypatch.setattr(Gallery, "distances", counted)
    for memory, most in ((1, 64), (4 * 1000 * 200, 192), (2**40, 1000)):
        rows.clear()
        again = rank_queries(*thousand, neighbors=5, memory=memory)
        assert (sum(rows), max(rows)) == (1000, most)
        for name, values in once.values.items():
            assert np.array_equal(values, again.values[name], equal_nan=True), name
        assert np.array_equal(once.neighbors, again.neighbors)


@pytest.mark.parametrize("metrics", [RANKING, ["recall"]])
def test_threads_change_nothing(thousand: Any, metrics: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = rank_queries(*thousand, metrics=metrics)
    before = torch.get_num_threads()
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 4)
        assert_same(rank_queries(*thousand, metrics=metrics), alone)
    assert torch.get_num_threads() == before


def test_similarities_are_cosines(thousand: Any) -> None:
    embeddings = thousand[0] / np.linalg.norm(thousand[0], axis=1, keepdims=True)
    for metrics in (RANKING, ["recall"], []):
        ranked = rank_queries(*thousand, metrics=metrics, neighbors=3)
        expected = (embeddings[:, None] * embeddings[ranked.neighbors]).sum(axis=2)
        np.testing.assert_allclose(ranked.similarities, expected, atol=1e-6)
        assert ranked.similarities.dtype == np.float32


def test_queries_without_positives_have_no_value() -> None:
    """Query 2 shares the super-class alone, query 3 nothing."""
    embeddings = np.eye(4)
    labels = np.array([[0, 0], [0, 0], [1, 0], [2, 1]])
    ranked = rank_queries(embeddings, labels, recall_at=(1,))
    for name, values in ranked.values.items():
        expected = [False, False, name.startswith("level0/"), True]
        assert np.isnan(values).tolist() == expected, name
    means = ranked.compute_means()
    counts = {name: value for name, value in means.items() if name.endswith("queries_without_positives")}
    assert counts == {
        "level0/queries_without_positives": 2,
        "level1/queries_without_positives": 1,
        "queries_without_positives": 1,
    }
    assert means["level0/ap"] == np.nanmean(ranked.values["level0/ap"])


def test_a_metric_without_a_value_leaves_the_count_and_the_other_means_as_they_are() -> None:
    """Only the coarser positives of query 2 count for it, and their weight is 0."""
    embeddings, labels = np.eye(4), np.array([[0, 0], [0, 0], [1, 0], [2, 0]])
    alone = rank_queries(embeddings, labels, metrics=["h_ap"]).compute_means()
    found = rank_queries(embeddings, labels, metrics=["h_ap", "sum_wap"], level_weights=(1, 0)).compute_means()
    assert {name: found[name] for name in alone} == alone
    assert found["sum_wap"] > 0
