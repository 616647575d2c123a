"""Each step against slow loops in float64 that follow the papers, and what a query must not see."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dml.retrieval import k_reciprocal, reranking
from dml.retrieval.k_reciprocal import KReciprocal
from dml.retrieval.reranking import AlphaQueryExpansion, Comparison, DatabaseAugmentation, Reranker, compare_among
from dml.runtime.errors import InputError

Vectors = npt.NDArray[np.float64]


def unit(vectors: Any) -> Vectors:
    vectors = np.asarray(vectors, dtype=np.float64)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def draw(seed: int, rows: int, centers: int = 4) -> Vectors:
    """Unit vectors around a few centers, as those of classes are."""
    rng = np.random.default_rng(seed)
    return unit(rng.normal(size=(centers, 6))[rng.integers(centers, size=rows)] + 0.7 * rng.normal(size=(rows, 6)))


def compare(queries: Vectors, gallery: Vectors, excluded: list[list[int]]) -> Comparison:
    width = max(map(len, excluded))
    padded = np.array([row + [-1] * (width - len(row)) for row in excluded], dtype=np.int64).reshape(len(excluded), -1)
    return Comparison(torch.from_numpy(queries).float(), torch.from_numpy(gallery).float(), padded, False)


def nearest(query: Vectors, gallery: dict[int, Vectors]) -> list[int]:
    """The items by falling cosine, ties by index."""
    return sorted(gallery, key=lambda item: (-float(query @ gallery[item]), item))


def augment(gallery: dict[int, Vectors], n: int) -> dict[int, Vectors]:
    augmented = {}
    for item, vector in gallery.items():
        others = nearest(vector, {other: gallery[other] for other in gallery if other != item})
        total = np.zeros_like(vector)
        for rank, other in enumerate([item, *others][:n]):
            total = total + (n - rank) / n * gallery[other]
        augmented[item] = unit(total)
    return augmented


def expand(query: Vectors, gallery: dict[int, Vectors], n: int, alpha: float) -> Vectors:
    total = query
    for item in nearest(query, gallery)[:n]:
        total = total + max(float(query @ gallery[item]), 0.0) ** alpha * gallery[item]
    return unit(total)


def search(query: Vectors, gallery: Vectors, excluded: list[int], steps: str) -> list[float]:
    """Search in a gallery that never held the excluded items -> the distance to each item, inf to those."""
    items = {item: vector for item, vector in enumerate(gallery) if item not in excluded}
    for step in steps.split():
        if step == "dba":
            items = augment(items, n=4)
        else:
            query = expand(query, items, n=3, alpha=2.0)
    return [-float(query @ items[item]) if item in items else math.inf for item in range(len(gallery))]


STEPS: dict[str, Reranker] = {"dba": DatabaseAugmentation(4), "alpha_qe": AlphaQueryExpansion(3, 2.0)}


def rerank(comparison: Comparison, steps: str) -> npt.NDArray[np.float32]:
    for step in steps.split():
        comparison = STEPS[step](comparison)
    return torch.cat([comparison.distances(rows) for rows in comparison.split()]).numpy()


@pytest.fixture(params=["whole", "in blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of so few rows that every loop over blocks runs several times."""
    if request.param == "in blocks":
        monkeypatch.setattr(reranking, "MEMORY", 4 * 30 * 3)
        monkeypatch.setattr(reranking, "ITEMS_AT_ONCE", 7)
        monkeypatch.setattr(k_reciprocal, "ROWS", 4)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("steps", ["alpha_qe", "dba", "dba alpha_qe", "alpha_qe dba"])
@pytest.mark.parametrize("rows", [2, 3, 5, 30])
def test_a_query_in_its_gallery_finds_what_it_would_find_in_a_gallery_without_it(steps: str, rows: int) -> None:
    vectors = draw(rows, rows)
    expected = [search(vectors[i], vectors, [i], steps) for i in range(rows)]
    own = rerank(compare_among(torch.from_numpy(vectors).float()), steps)
    np.testing.assert_allclose(own, expected, atol=2e-6)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("steps", ["alpha_qe", "dba", "dba alpha_qe", "alpha_qe dba"])
def test_a_separate_gallery_without_the_items_that_a_query_excludes(steps: str) -> None:
    vectors = draw(0, 35)
    queries, gallery = vectors[:9], vectors[9:]
    for excluded in ([[]] * 9, [[3], [], [0, 7, 8], [], [], [25], [1, 2], [], [5]]):
        expected = [search(query, gallery, items, steps) for query, items in zip(queries, excluded, strict=True)]
        np.testing.assert_allclose(rerank(compare(queries, gallery, excluded), steps), expected, atol=2e-6)


def distances_by_the_paper(
    queries: Vectors | None, gallery: Vectors, excluded: list[list[int]], k1: int, k2: int, weight: float
) -> Vectors:
    """The distances of Zhong et al., set by set; without queries, each gallery item is one."""
    distance = {(i, j): 2 - 2 * float(a @ b) for i, a in enumerate(gallery) for j, b in enumerate(gallery)}
    lists = {}
    for i in range(len(gallery)):
        lists[i] = [i, *sorted((j for j in range(len(gallery)) if j != i), key=lambda j: (distance[i, j], j))]

    def reciprocal(i: int, k: int) -> set[int]:
        return {j for j in lists[i][: k + 1] if i in lists[j][: k + 1]}

    def encode(i: int, near: set[int]) -> dict[int, float]:
        joined = set(near)
        for j in near - {-1}:
            members = reciprocal(j, round(k1 / 2))
            if 3 * len(members & near) > 2 * len(members):
                joined |= members
        farthest = max(distance[i, j] for j in lists[i] if j != i)
        entries = {j: math.exp(-(0.0 if j == i else distance[i, j]) / farthest) for j in joined}
        return {j: value / sum(entries.values()) for j, value in entries.items()}

    def average(codes: list[dict[int, float]]) -> dict[int, float]:
        return {j: sum(code.get(j, 0.0) for code in codes) / len(codes) for j in set().union(*codes)}

    codes = {i: encode(i, reciprocal(i, k1)) for i in range(len(gallery))}
    means = {i: average([codes[j] for j in lists[i][:k2]]) for i in codes}
    result = np.full((len(excluded), len(gallery)), math.inf)
    for p in range(len(excluded)):
        own = p
        if queries is not None:
            own = -1  # an item that isn't in the gallery
            distance |= {(-1, j): 2 - 2 * float(queries[p] @ gallery[j]) for j in range(len(gallery))}
            ranked = [j for j in range(len(gallery)) if j not in excluded[p]]
            lists[-1] = [-1, *sorted(ranked, key=lambda j: (distance[-1, j], j))]
            near = {-1} | {
                g
                for g in lists[-1][1 : k1 + 1]
                if sum(distance[g, j] < distance[-1, g] for j in range(len(gallery)) if j != g) < k1
            }
            means[-1] = average([encode(-1, near), *(codes[j] for j in lists[-1][1:k2])])
        farthest = max(distance[own, j] for j in lists[own] if j != own)
        for g in set(range(len(gallery))) - set(excluded[p]):
            smaller = sum(min(means[own].get(j, 0.0), means[g].get(j, 0.0)) for j in {*means[own], *means[g]})
            larger = sum(max(means[own].get(j, 0.0), means[g].get(j, 0.0)) for j in {*means[own], *means[g]})
            result[p, g] = (1 - weight) * (1 - smaller / larger) + weight * distance[own, g] / farthest
    return result


SIZES = [(20, 6, 0.3), (5, 2, 0.3), (4, 1, 0.0), (1, 2, 0.5)]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("k1", "k2", "weight"), SIZES)
@pytest.mark.parametrize("rows", [2, 9, 40])
def test_k_reciprocal_among_the_queries(rows: int, k1: int, k2: int, weight: float) -> None:
    vectors = draw(rows, rows)
    reranked = KReciprocal(k1, k2, weight)(compare_among(torch.from_numpy(vectors).float()))
    distances = torch.cat([reranked.distances(block) for block in reranked.split()])
    expected = distances_by_the_paper(None, vectors, [[i] for i in range(rows)], k1, k2, weight)
    np.testing.assert_allclose(distances, expected, atol=1e-5)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("k1", "k2", "weight"), SIZES)
@pytest.mark.parametrize("rows", [4, 9, 40])
def test_k_reciprocal_in_a_gallery(rows: int, k1: int, k2: int, weight: float) -> None:
    vectors = draw(rows, rows + 6)
    queries, gallery = vectors[:6], vectors[6:]
    for excluded in ([[]] * 6, [[3], [], [0, 2], [], [1], []])[: 1 if rows < k1 + 2 and rows < 40 else 2]:
        reranked = KReciprocal(k1, k2, weight)(compare(queries, gallery, excluded))
        distances = torch.cat([reranked.distances(block) for block in reranked.split()])
        expected = distances_by_the_paper(queries, gallery, excluded, k1, k2, weight)
        np.testing.assert_allclose(distances, expected, atol=1e-5)
        alone = KReciprocal(k1, k2, weight)(compare(queries[2:3], gallery, excluded[2:3]))
        np.testing.assert_allclose(alone.distances(range(1)), distances[2:3], atol=1e-6)  # queries are independent


def test_k_reciprocal_behind_query_expansion() -> None:
    vectors = draw(1, 30)
    queries, gallery = vectors[:6], vectors[6:]
    expanded = unit([expand(query, dict(enumerate(gallery)), n=3, alpha=2.0) for query in queries])
    reranked = KReciprocal(5, 2)(STEPS["alpha_qe"](compare(queries, gallery, [[]] * 6)))
    expected = distances_by_the_paper(expanded, gallery, [[]] * 6, 5, 2, 0.3)
    np.testing.assert_allclose(reranked.distances(range(6)), expected, atol=1e-5)
    with pytest.raises(InputError, match="k_reciprocal: behind another step it needs queries that are not in"):
        KReciprocal()(STEPS["alpha_qe"](compare_among(torch.from_numpy(vectors).float())))


@pytest.mark.parametrize("steps", [*STEPS.values(), KReciprocal()])
def test_copies_and_zero_embeddings_give_numbers(steps: Reranker) -> None:
    vectors = torch.zeros(30, 3)
    vectors[:25, 0] = 1.0
    distances = steps(compare_among(vectors)).distances(range(30))
    assert torch.isfinite(distances[~torch.eye(30, dtype=torch.bool)]).all()
    assert (distances.diag() == torch.inf).all()
    assert distances.where(distances < torch.inf, 0.0).abs().max() <= 1.0 + 1e-6


def test_numbers_that_make_no_sense() -> None:
    for make in (
        lambda: AlphaQueryExpansion(0),
        lambda: AlphaQueryExpansion(alpha=-1.0),
        lambda: DatabaseAugmentation(1),
        lambda: KReciprocal(k1=0),
        lambda: KReciprocal(k1=2, k2=4),
        lambda: KReciprocal(distance_weight=1.5),
    ):
        with pytest.raises(InputError, match="must be at least"):
            make()
    augmented = DatabaseAugmentation()(compare_among(torch.eye(4)))
    with pytest.raises(InputError, match="augmented already"):
        DatabaseAugmentation()(augmented)
