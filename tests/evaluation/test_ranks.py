from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dml.evaluation.ranks import FEW, _rank_by_bisection, _rank_by_sorting, rank_chosen
from dml.retrieval.gallery import nearest


def by_distance_and_index(distances: Any) -> list[int]:
    return sorted(range(len(distances)), key=lambda item: (float(distances[item]), item))


def assert_ranked(distances: Any, codes: Any) -> None:
    numbers = np.count_nonzero(codes, axis=1)
    chosen = rank_chosen(distances, codes, numbers)
    found = [
        (rank, row[item])
        for row, row_distances in zip(codes.tolist(), distances, strict=True)
        for rank, item in enumerate(by_distance_and_index(row_distances), 1)
        if row[item]
    ]
    assert chosen.ranks.tolist() == [rank for rank, _ in found]
    assert chosen.codes.tolist() == [code for _, code in found]
    assert chosen.numbers.tolist() == numbers.tolist()
    bits, on_device = torch.from_numpy(codes.astype(np.int64)), torch.from_numpy(distances)
    ways = (
        _rank_by_sorting(on_device, bits)[:3],
        _rank_by_bisection(on_device, bits, torch.from_numpy(numbers), numbers.max()),
    )
    for rows, row_bits, ranks in ways:  # tensor functions, here on CPU
        assert rows.tolist() == np.repeat(np.arange(len(codes)), numbers).tolist()
        assert row_bits.tolist() == chosen.codes.tolist()
        assert ranks.tolist() == chosen.ranks.tolist()


def draw_codes(rng: Any, shares: Any, items: int, largest: int) -> Any:
    """Codes (R, N) from 1 to the largest one for a share of each row, and 0 for all others."""
    is_chosen = rng.random((len(shares), items)) < np.array(shares)[:, None]
    return np.where(is_chosen, rng.integers(1, largest + 1, is_chosen.shape), 0).astype(np.min_scalar_type(largest))


COARSE = [-1.0, -0.5, -0.0, 0.0, 2.0**-40, -(2.0**-40), 0.25, 1.0, 1e-30, -1e-30]  # ties, both zeros, and almost none


@given(
    st.integers(1, 150),
    st.integers(1, len(COARSE)),
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
    st.integers(0, 3),
    st.sampled_from([1, 2, 3, 4, 7, 8, 300]),
    st.integers(0, 2**32 - 1),
)
@examples(200)
def test_ranks_agree_with_a_plain_sort(
    items: int, values: int, shares: list[float], most: int, largest: int, seed: int
) -> None:
    """Many ties and few, codes of all lengths, with excluded items and without."""
    rng = np.random.default_rng(seed)
    distances = rng.choice(COARSE[:values], (len(shares), items)).astype(np.float32)
    codes = draw_codes(rng, shares, items, largest)
    excluded = rng.integers(items, size=(len(shares), most))
    np.put_along_axis(distances, excluded, np.inf, axis=1)
    np.put_along_axis(codes, excluded, 0, axis=1)
    assert_ranked(distances, codes)


@pytest.mark.parametrize("number", [0, 1, FEW, FEW + 1, 60, 399])
@pytest.mark.parametrize("digits", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("largest", [1, 2, 7, 9])
def test_few_and_many_of_several_rows_are_ranked(number: int, digits: int, largest: int) -> None:
    """From every item tied to none, with numbers around the largest that are counted."""
    rng = np.random.default_rng(0)
    for rows in (3, 4, 1):
        own = rng.integers(400, size=rows)
        distances = rng.uniform(-1, 1, (rows, 400)).round(digits).astype(np.float32)
        distances[np.arange(rows), own] = np.inf
        codes = np.zeros((rows, 400), dtype=np.uint8)
        for row, item in zip(codes, own, strict=True):
            chosen = rng.choice(np.delete(np.arange(400), item), number, replace=False)
            row[chosen] = rng.integers(1, largest + 1, number)
        assert_ranked(distances, codes)


def test_rows_do_not_tie_with_each_other() -> None:
    distances = np.full((2, 2 * FEW), 0.5, dtype=np.float32)
    codes = np.full((2, 2 * FEW), 2, dtype=np.uint8)
    codes[1] = 0
    assert_ranked(distances, codes)


@pytest.mark.parametrize("largest", [1, 3, 7])
def test_neighboring_floats_do_not_tie(largest: int) -> None:
    distances = np.float32(0.3) + np.zeros((1, 50), dtype=np.float32)
    for item in range(1, 50):
        distances[0, item] = np.nextafter(distances[0, item - 1], np.float32(-1 if item % 2 else 1), dtype=np.float32)
    codes = np.random.default_rng(0).integers(0, largest + 1, (1, 50)).astype(np.uint8)
    assert_ranked(distances, codes)
    assert_ranked(-distances, codes)


@given(st.lists(st.sampled_from([*COARSE, np.inf]), min_size=1, max_size=40), st.data())
def test_nearest_are_the_first_by_distance_and_index(values: list[float], data: Any) -> None:
    distances = np.array(values, dtype=np.float32)
    k = data.draw(st.integers(0, len(values)))
    assert nearest(distances, k).tolist() == by_distance_and_index(distances)[:k]
