"""How FAISS compares few queries with all vectors."""

from typing import Any

import faiss
import numpy as np
import pytest

from dml.retrieval import search as faiss_search
from dml.retrieval.search import FEWEST, multiplying_few_queries, nearest_neighbors
from dml.retrieval.vector_index import VectorIndex

SETTINGS: Any = faiss.cvar


def test_the_threshold_of_faiss_is_lowered_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SETTINGS.distance_compute_blas_threshold
    with multiplying_few_queries(16):
        assert SETTINGS.distance_compute_blas_threshold == (FEWEST * 16 if faiss_search.COUNTS_COMPONENTS else before)
    assert SETTINGS.distance_compute_blas_threshold == before
    monkeypatch.setattr(faiss_search, "COUNTS_COMPONENTS", False)
    with multiplying_few_queries(16):
        assert SETTINGS.distance_compute_blas_threshold == before


def test_searches_of_two_threads_leave_the_threshold_as_it_was() -> None:
    before = SETTINGS.distance_compute_blas_threshold
    first, second = multiplying_few_queries(16), multiplying_few_queries(8)
    first.__enter__()
    second.__enter__()
    assert SETTINGS.distance_compute_blas_threshold == (FEWEST * 8 if faiss_search.COUNTS_COMPONENTS else before)
    first.__exit__(None, None, None)
    assert SETTINGS.distance_compute_blas_threshold == (FEWEST * 8 if faiss_search.COUNTS_COMPONENTS else before)
    second.__exit__(None, None, None)
    assert SETTINGS.distance_compute_blas_threshold == before


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
