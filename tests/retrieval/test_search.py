import tracemalloc
from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml.retrieval import search
from dml.retrieval.search import FEWEST, drop_excluded, multiplying_few_queries, nearest_neighbors
from dml.retrieval.vector_index import VectorIndex
from dml.runtime.errors import InputError

WHOLE = st.integers(-3, 3).map(float)  # small whole numbers: float32 products are exact, ties and duplicates are many


def tables(rows: int, least: int = 1) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.float64, st.tuples(st.integers(least, rows), st.just(2)), elements=WHOLE)


def ranking(query: Any, gallery: Any, left_out: int | None = None) -> list[tuple[float, int]]:
    """The whole gallery by falling float64 dot product, ties by index."""
    others = [j for j in range(len(gallery)) if j != left_out]
    return sorted(
        ((sum(a * b for a, b in zip(query, gallery[j], strict=True)), j) for j in others),
        key=lambda hit: (-hit[0], hit[1]),
    )


def assert_nearest(scores: Any, indices: Any, expected: list[tuple[float, int]]) -> None:
    assert list(zip(scores.tolist(), indices.tolist(), strict=True)) == expected[: len(scores)]


@pytest.fixture(scope="module", params=["on CPU", "on CUDA"])
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """FAISS, and what searches on a CUDA device: there is none here, so torch plays it on CPU, a few rows at a time."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "on CUDA":
            patched.setattr(search, "Search", search.BlockSearch)
            patched.setattr(search, "MEMORY", 300)
        with np.errstate(over="ignore", invalid="ignore"):  # a GPU warns of neither
            yield


@pytest.mark.usefixtures("device")
@given(tables(12), tables(30), st.integers(1, 40), st.integers(1, 5))
@examples(80)
def test_gallery_agrees_with_brute_force(query: Any, gallery: Any, k: int, batch: int) -> None:
    scores, indices = nearest_neighbors(query, k, gallery, batch=batch)
    assert scores.shape == indices.shape == (len(query), min(k, len(gallery)))
    assert scores.dtype == torch.float32
    assert indices.dtype == torch.int64
    for i in range(len(query)):
        assert_nearest(scores[i], indices[i], ranking(query[i], gallery))


@pytest.mark.usefixtures("device")
@given(tables(30, least=2), st.integers(1, 40), st.integers(1, 8))
@examples(80)
def test_own_gallery_leaves_out_the_query_by_index(query: Any, k: int, batch: int) -> None:
    scores, indices = nearest_neighbors(query, k, batch=batch)
    assert scores.shape == (len(query), min(k, len(query) - 1))
    for i in range(len(query)):
        assert i not in indices[i]
        assert_nearest(scores[i], indices[i], ranking(query[i], query, left_out=i))


@pytest.mark.usefixtures("device")
def test_equals_are_listed_in_the_gallerys_order() -> None:
    _, indices = nearest_neighbors(np.ones((50, 4)), 3)
    assert indices.tolist() == [[j for j in range(4) if j != i][:3] for i in range(50)]


def copies(rows: int, size: int) -> tuple[Any, Any]:
    """Random rows, every seventh of the first half once more in the second -> they, and whose copy each is."""
    table = np.random.default_rng(0).normal(size=(rows, size)).astype(np.float32)
    first = np.arange(0, rows // 2, 7)
    originals = np.arange(rows)
    originals[rows - 1 - np.arange(len(first))] = first
    return table[originals], originals


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("rows", "batch"), [(60, 17), (60, 4096), (1025, 17), (1025, 400), (3000, 4096)])
def test_copies_stand_side_by_side_in_order(rows: int, batch: int) -> None:
    """FAISS rounds a dot product differently at another place of its blocks; the second would often come first."""
    table, originals = copies(rows, 96)
    scores, indices = (found.numpy() for found in nearest_neighbors(table[::3], 9, table, batch=batch))
    for i in range(len(scores)):
        whose = originals[indices[i]]
        for place, item in enumerate(indices[i, :-1]):
            twins = np.flatnonzero(originals == whose[place])
            after = twins[twins > item]
            if len(after):
                assert indices[i, place + 1] == after[0]
                assert scores[i, place + 1] == scores[i, place]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_tie_over_the_end_is_settled_by_index(k: int) -> None:
    """Different embeddings at the same score, and as many as FAISS likes to choose from."""
    gallery = np.tile([[0.0, 1.0]], (40, 1))
    gallery[:, 0] = np.arange(40)[::-1]
    _, indices = nearest_neighbors(np.array([[0.0, 1.0]] * 30), k, gallery)
    assert indices.tolist() == [list(range(k))] * 30


def test_right_beside_torch() -> None:
    """Both bring an OpenMP of their own: products of each, in turns."""
    query = torch.from_numpy(np.random.default_rng(0).normal(size=(1000, 48)).astype(np.float32))
    for _ in range(3):
        scores, indices = nearest_neighbors(query, 5)
        expected, order = (query @ query.T).fill_diagonal_(-torch.inf).topk(5)
        torch.testing.assert_close(scores, expected, atol=1e-4, rtol=0)
        assert (order == indices).double().mean() > 0.999


def test_many_exclusions_of_one_query_take_no_memory_for_the_others() -> None:
    queries, k, many = 1000, 10, 400
    indices = np.tile(np.arange(k + many), (queries, 1))
    excluded = np.full((queries, many), -1)
    excluded[0] = np.arange(many)
    tracemalloc.start()
    try:
        _, kept = drop_excluded(indices.astype(np.float32), indices, excluded)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept[0].tolist() == [*range(many, many + k)]
    assert (kept[1:] == np.arange(k)).all()
    assert peak < 20e6  # all pairs of a neighbor and an exclusion would be 164 MB


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_any_real_dtype_and_layout(dtype: torch.dtype) -> None:
    query = torch.tensor([[1, 2, 0], [0, 1, 3], [2, 0, 1], [1, 1, 1]], dtype=dtype)
    _, expected = nearest_neighbors(query.float(), 2)
    assert torch.equal(nearest_neighbors(query, 2)[1], expected)
    assert torch.equal(nearest_neighbors(query.T.contiguous().T, 2)[1], expected)


def test_read_only_arrays_are_searched_and_inputs_stay_as_they_were() -> None:
    query = np.eye(3, dtype=np.float32)
    query.setflags(write=False)
    nearest_neighbors(query, 1)
    assert np.array_equal(query, np.eye(3))


def broken(rows: int) -> np.ndarray[Any, Any]:
    query = np.ones((5, 3))
    query[:rows, 1] = [np.nan, np.inf, 1e300][:rows]
    return query


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((broken(2), 1), "query: 2 of 5"),
        ((torch.from_numpy(broken(3)), 1), "query: 3 of 5"),
        ((np.ones((2, 3)), 1, broken(3)), "gallery: 3 of 5"),
        ((np.ones((2, 3)), 1, np.ones((2, 4))), "3 dimensions"),
        *[((np.ones((2, 3)), k), "k=") for k in (0, 1.0)],
        *[((np.ones(shape), 1), "query: ") for shape in ((0, 3), 3)],
        ((np.ones((2, 3)), 1, np.ones((0, 3))), "gallery: "),
        ((np.array([[3e38, 3e38], [-3e38, -3e38], [3e38, -3e38]]), 2), "overflow"),
        ((np.full((3, 2), 1e20), 1), "overflow"),
        ((np.array([[1e20, 0], [0, 1], [2e20, 0], [3e20, 1]]), 2), "overflow"),
    ],
)
def test_errors(arguments: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        nearest_neighbors(*arguments)


SETTINGS: Any = faiss.cvar


def test_searches_of_two_threads_leave_the_threshold_as_it_was() -> None:
    first, second, thresholds = multiplying_few_queries(16), multiplying_few_queries(8), []

    def look(_: Any) -> None:
        thresholds.append(SETTINGS.distance_compute_blas_threshold)

    look(None)
    for step in (first.__enter__, second.__enter__):
        look(step())
    for leave in (first.__exit__, second.__exit__):
        look(leave(None, None, None))
    before, *meanwhile, after = thresholds
    assert meanwhile == [16 * FEWEST, 8 * FEWEST, 8 * FEWEST]
    assert after == before


@pytest.mark.parametrize("queries", [1, FEWEST - 1, FEWEST, 50])
def test_few_queries_find_what_a_matrix_product_finds(queries: int) -> None:
    rng = np.random.default_rng(0)
    query, gallery = (rng.standard_normal((rows, 16), dtype=np.float32) for rows in (queries, 500))
    products = query @ gallery.T
    expected = np.argsort(-products, axis=1)[:, :7]
    index = VectorIndex(16)
    index.add(gallery, np.arange(500))
    for scores, found in (nearest_neighbors(query, 7, gallery), index.search(query, 7)):
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(scores, np.take_along_axis(products, expected, axis=1), rtol=1e-5)
