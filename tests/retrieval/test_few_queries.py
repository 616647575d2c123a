"""How FAISS compares few queries with all vectors."""

from typing import Any

import faiss
import numpy as np
import pytest

from dml.retrieval.search import FEWEST, multiplying_few_queries, nearest_neighbors
from dml.retrieval.vector_index import VectorIndex

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
