from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dml.retrieval.ranks import FEW, Ranker, nearest


def by_distance_and_index(distances: Any) -> list[int]:
    return sorted(range(len(distances)), key=lambda item: (float(distances[item]), item))


def expected_places(distances: Any, chosen: Any) -> tuple[list[int], list[int]]:
    ranking = by_distance_and_index(distances)
    found = [(rank, item) for rank, item in enumerate(ranking, 1) if item in set(chosen.tolist())]
    return [chosen.tolist().index(item) for _, item in found], [rank for rank, _ in found]


def assert_ranked(ranker: Ranker, distances: Sequence[Any], chosen: Sequence[Any], excluded: Any = None) -> None:
    numbers = np.array([len(items) for items in chosen])
    expected = [expected_places(row, items) for row, items in zip(distances, chosen, strict=True)]
    starts = np.cumsum(numbers) - numbers
    order = [start + place for start, own in zip(starts, expected, strict=True) for place in own[0]]
    for step in (1, 3, 20, max(1, sum(numbers))):  # all items are located, some and few
        located = np.arange(0, sum(numbers), step)
        ranks, places = ranker(np.stack(distances), np.concatenate(chosen), numbers, excluded, located=located)
        assert ranks.tolist() == [rank for own in expected for rank in own[1]]
        assert places.tolist() == [order.index(item) for item in located]


COARSE = [-1.0, -0.5, -0.0, 0.0, 1e-30, -1e-30, 0.25, 1.0]  # ties, both zeros, and what is almost none


@given(
    st.integers(1, 150),
    st.integers(1, len(COARSE)),
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)
@examples(150)
def test_ranks_agree_with_a_plain_sort(items: int, values: int, shares: list[float], most: int, seed: int) -> None:
    """Many ties and few, with excluded items at infinity and without."""
    rng = np.random.default_rng(seed)
    distances = rng.choice(COARSE[:values], (len(shares), items)).astype(np.float32)
    excluded = rng.integers(-1, items, size=(len(shares), most)) if most else None
    chosen = rng.random((len(shares), items)) < np.array(shares)[:, None]
    for row in range(len(shares)) if excluded is not None else ():
        gone = excluded[row][excluded[row] >= 0]
        distances[row, gone] = np.inf
        chosen[row, gone] = False
    assert_ranked(Ranker(3, items), distances, [np.flatnonzero(row) for row in chosen], excluded)


@pytest.mark.parametrize("number", [0, 1, FEW, FEW + 1, 60, 399])
@pytest.mark.parametrize("digits", [1, 2, 3, 4, 7])
def test_one_ranker_ranks_rows_after_rows(number: int, digits: int) -> None:
    """From every item tied to none: each way to count, and to settle ties."""
    rng, ranker = np.random.default_rng(0), Ranker(4, 400)
    for rows in (3, 4, 1):
        own = rng.integers(400, size=rows)
        distances = rng.uniform(-1, 1, (rows, 400)).round(digits).astype(np.float32)
        distances[np.arange(rows), own] = np.inf
        others = [np.delete(np.arange(400), item) for item in own]
        assert_ranked(
            ranker, distances, [np.sort(rng.choice(some, number, replace=False)) for some in others], own[:, None]
        )


def test_neighbouring_floats_do_not_tie() -> None:
    distances = np.float32(0.3) + np.zeros(50, dtype=np.float32)
    for item in range(1, 50):
        distances[item] = np.nextafter(distances[item - 1], np.float32(-1 if item % 2 else 1), dtype=np.float32)
    assert_ranked(Ranker(1, 50), [distances], [np.arange(0, 50, 2)])
    assert_ranked(Ranker(1, 50), [-distances], [np.arange(50)])


@given(st.lists(st.sampled_from([*COARSE, np.inf]), min_size=1, max_size=40), st.data())
def test_nearest_are_the_first_by_distance_and_index(values: list[float], data: Any) -> None:
    distances = np.array(values, dtype=np.float32)
    k = data.draw(st.integers(0, len(values)))
    assert nearest(distances, k).tolist() == by_distance_and_index(distances)[:k]
