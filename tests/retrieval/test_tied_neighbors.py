import numpy as np
import pytest

from dml.retrieval import search as faiss_search
from dml.retrieval.vector_index import VectorIndex

IDS = np.array([3, 5, 8, 9, 12, 40, 41])


def make_index(factory: str = "Flat") -> VectorIndex:
    """Six copies of one vector around another one."""
    vectors = np.tile(np.float32([0.6, 0.8]), (7, 1))
    vectors[3] = [1.0, 0.0]
    index = VectorIndex(2, factory)
    index.add(vectors, IDS)
    return index


@pytest.mark.parametrize("factory", ["Flat", "HNSW8,Flat"])
def test_copies_are_in_the_order_of_their_ids(factory: str) -> None:
    _, ids = make_index(factory).search(np.float32([[0.6, 0.8], [1.0, 0.0]]), k=7)
    assert ids.tolist() == [[3, 5, 8, 12, 40, 41, 9], [9, 3, 5, 8, 12, 40, 41]]


@pytest.mark.parametrize("k", range(1, 8))
@pytest.mark.parametrize("queries", [1, 6])
def test_fewer_neighbors_are_the_first_of_more(k: int, queries: int) -> None:
    copies = np.tile(np.float32([0.6, 0.8]), (queries, 1))
    scores, ids = make_index().search(copies, k)
    assert ids.tolist() == [[3, 5, 8, 12, 40, 41, 9][:k]] * queries
    assert scores.shape == (queries, k)


def test_the_search_among_copies_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_search, "MOST_TIES", 1)
    depths = []

    def search(queries: faiss_search.Floats, k: int) -> tuple[faiss_search.Floats, faiss_search.Integers]:
        depths.append(k)
        return np.ones((len(queries), k), np.float32), np.tile(np.arange(k)[::-1], (len(queries), 1))

    assert faiss_search.search_with_ties(search, np.zeros((2, 3), np.float32), 2, 100)[1].tolist() == [[0, 1]] * 2
    assert depths == [3]
