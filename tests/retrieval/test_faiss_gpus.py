"""FAISS with GPUs, which the CPU plays here: what is copied to them and searched there, and that nothing changes."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pytest
import torch

from dml.retrieval.kmeans_clusters import kmeans
from dml.retrieval.search import nearest_neighbors
from dml.retrieval.vector_index import VectorIndex, find_core

DIMENSION, NUMBER = 16, 2500
VECTORS = np.random.default_rng(0).normal(size=(NUMBER, DIMENSION)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
QUERIES = VECTORS[:40]
Found = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


class IndexOnGpus:
    """A copy of an index that only answers what FAISS's indexes on GPUs answer, to one thread at a time."""

    def __init__(self, index: Any) -> None:
        self.index = faiss.clone_index(index)
        self.searches, self.running = 0, 0

    def search(self, queries: npt.NDArray[np.float32], k: int) -> Found:
        assert k < 2048
        self.running += 1
        assert self.running == 1
        time.sleep(0.001)
        found: Found = self.index.search(queries, k)
        self.running -= 1
        self.searches += 1
        return found


class Gpus:
    """What is copied to two GPUs: the indexes that hold vectors, and how many empty ones, which a clustering fills."""

    def __init__(self) -> None:
        self.indexes: list[IndexOnGpus] = []
        self.clusterings = 0

    def copy(self, index: Any, co: Any = None, ngpu: int = -1) -> Any:
        lists = faiss.try_extract_index_ivf(index)
        if isinstance(find_core(index), faiss.IndexHNSW):
            raise RuntimeError("This index type is not implemented on GPU.")  # noqa: TRY004 - FAISS's own
        if index.ntotal:
            assert lists is None or lists.nprobe < 2048
            self.indexes.append(IndexOnGpus(index))
            return self.indexes[-1]
        self.clusterings += 1
        return faiss.clone_index(index)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    gpus = Gpus()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", gpus.copy)
    return gpus


def build(factory: str, parameters: str = "") -> VectorIndex:
    index = VectorIndex(DIMENSION, factory)
    if index.needs_training:
        index.train(VECTORS)
    index.set_parameters(parameters)
    index.add(VECTORS[:-100], np.arange(NUMBER - 100))
    return index


def search_while_it_changes(factory: str, parameters: str) -> list[npt.NDArray[Any]]:
    """Search an index as it is built, after a removal, after an addition, and with another parameter."""
    index, found = build(factory, parameters), []
    found += index.search(QUERIES, k=3)
    index.remove(np.arange(0, 60, 2))
    found += index.search(QUERIES, k=3)
    index.add(VECTORS[-100:], np.arange(NUMBER - 100, NUMBER))
    found += index.search(QUERIES, k=3)
    index.set_parameters(parameters and "nprobe=1")
    return [*found, *index.search(QUERIES, k=3)]


@pytest.mark.parametrize(
    ("factory", "parameters"), [("Flat", ""), ("IVF4,Flat", "nprobe=4"), ("RR16,IVF4,SQ8", "nprobe=2")]
)
def test_an_index_is_trained_and_searched_there_after_each_change(
    gpus: Gpus, factory: str, parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = search_while_it_changes(factory, parameters)
    assert [index.searches for index in gpus.indexes] == [1] * 4
    assert gpus.clusterings == ("IVF" in factory)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    for part, expected in zip(found, search_while_it_changes(factory, parameters), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_a_copy_serves_many_searches_and_one_thread_at_a_time(gpus: Gpus) -> None:
    index = build("Flat")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda row: index.search(QUERIES[row : row + 1], k=1)[1][0, 0], range(40)))
    assert found == list(range(40))
    assert [copy.searches for copy in gpus.indexes] == [40]


@pytest.mark.parametrize(
    ("factory", "parameters", "k"), [("HNSW8", "", 1), ("Flat", "", 2048), ("IVF2400,Flat", "nprobe=2048", 1)]
)
def test_what_gpus_cannot_search_is_searched_on_the_cpu(gpus: Gpus, factory: str, parameters: str, k: int) -> None:
    index = build(factory, parameters)
    assert index.search(QUERIES, k)[1][:, 0].tolist() == list(range(40))
    assert not gpus.indexes


def test_neighbors_are_found_there_and_many_of_them_on_the_cpu(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, indices = nearest_neighbors(QUERIES, 5, VECTORS, batch=10)
    nearest_neighbors(QUERIES, 2047, VECTORS)  # one more is searched for
    assert [index.searches for index in gpus.indexes] == [4]
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    expected_scores, expected_indices = nearest_neighbors(QUERIES, 5, VECTORS)
    assert torch.equal(indices, expected_indices)
    torch.testing.assert_close(scores, expected_scores, rtol=0, atol=1e-6)


def test_clusters_are_found_there(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = kmeans(VECTORS, 30, seed=1)
    assert gpus.clusterings == 1
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    assert torch.equal(clusters, kmeans(VECTORS, 30, seed=1))
    assert gpus.clusterings == 1
