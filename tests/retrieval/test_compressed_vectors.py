"""Compressed vectors against loops that decode every vector and compare it with every query."""

import faiss
import numpy as np
import pytest

from dml.retrieval.compressed_vectors import CompressedVectors, Floats, Integers, Storage

SIZE, COUNT, K = 12, 60, 20
ERRORS = {"1": 0.8, "2": 0.4, "4": 0.2, "8": 0.04}
"""Bounds of the errors of RaBitQ's scores by its bits."""


def unit(seed: int, count: int = COUNT) -> Floats:
    rows = np.random.default_rng(seed).normal(size=(count, SIZE)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def with_copies() -> Floats:
    """Vectors half of which are copies of others, in another order."""
    rows = unit(1)
    rows[30:] = rows[np.random.default_rng(2).permutation(30)]
    return rows


def compare(storage: Storage, query: Floats, vectors: CompressedVectors, items: Floats) -> list[float]:
    """The similarity of a query to each vector as it is stored."""
    if storage is Storage.BINARY:
        return [-float(sum((a > 0) != (b > 0) for a, b in zip(query, item, strict=True))) for item in items]
    if storage.startswith("rabitq"):  # its scores are estimates, and not products of decoded vectors
        scores, ids = (found[0] for found in vectors._index.search(query[None], len(items)))
        assert np.abs(scores - items[ids] @ query).max() < ERRORS[storage[-1]]
        return [float(score) for score in scores[np.argsort(ids)]]
    decoded = vectors._index.reconstruct_n(0, len(items))
    return [float(query.astype(np.float64) @ item.astype(np.float64)) for item in decoded]


@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("excludes", [False, True])
def test_neighbors_are_those_of_a_loop_and_ties_keep_their_order(storage: Storage, excludes: bool) -> None:
    items, queries = with_copies(), unit(3, 9)
    vectors = CompressedVectors(storage, unit(4), items)
    excluded = np.array([[(7 * query) % COUNT, -1 if query % 2 else 3] for query in range(9)]) if excludes else None
    neighbors = vectors.search(queries, K, excluded)
    for row, query in enumerate(queries):
        similarities = np.round(compare(storage, query, vectors, items), 6)  # copies are equal, others differ by more
        left = [item for item in range(COUNT) if excluded is None or item not in excluded[row]]
        assert neighbors[row].tolist() == sorted(left, key=lambda item: (-similarities[item], item))[:K]


def test_a_group_of_ties_larger_than_the_result_is_in_order() -> None:
    items = np.repeat(unit(5, 2), 30, axis=0)[np.random.default_rng(0).permutation(COUNT)]
    for storage in Storage:
        neighbors = CompressedVectors(storage, unit(4), items).search(items[:1], 5)
        assert neighbors[0].tolist() == np.flatnonzero((items == items[0]).all(axis=1))[:5].tolist()


def test_rescoring_is_a_sort_of_the_first_neighbors_by_float_products() -> None:
    items, queries = with_copies(), unit(3, 9)
    for storage in (Storage.BINARY, Storage.PRODUCT):
        vectors = CompressedVectors(storage, unit(4), items)
        neighbors = vectors.search(queries, K)
        rescored = vectors.rescore(queries, neighbors, candidates=12)
        for row, query in enumerate(queries):
            products = np.round(items.astype(np.float64) @ query.astype(np.float64), 6)
            first = sorted(neighbors[row, :12].tolist(), key=lambda item: (-products[item], item))
            assert rescored[row].tolist() == first + neighbors[row, 12:].tolist()
    vectors = CompressedVectors(Storage.PRODUCT, unit(4), unit(6))
    product_index = CompressedVectors(Storage.PRODUCT, unit(4), unit(6)[:0])._index
    refined = faiss.IndexRefineFlat(product_index)
    refined.add(unit(6))
    refined.k_factor = 4
    own: Integers = vectors.rescore(queries, vectors.search(queries, 12), 12)[:, :3]
    np.testing.assert_array_equal(refined.search(queries, 3)[1], own)


@pytest.mark.parametrize(
    ("storage", "size"),
    [
        ("float32", 48),
        ("float16", 24),
        ("int8", 12),
        ("binary", 2),
        ("pq", 3),
        ("rabitq1", 10),
        ("rabitq2", 24),
        ("rabitq4", 27),
        ("rabitq8", 33),
    ],
)
def test_bytes_of_a_vector(storage: str, size: int) -> None:
    assert CompressedVectors(Storage(storage), unit(4, 300), unit(1)).bytes_per_vector == size


def test_training_images_alone_decide_the_codes() -> None:
    narrow = 0.1 * unit(4)
    vectors = CompressedVectors(Storage.INT8, narrow, unit(1))
    assert np.abs(vectors._index.reconstruct_n(0, COUNT)).max() < 0.2  # larger values are cut off
