from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.evaluation import ranks
from dml.evaluation.ranks import LONG, RADIX_SORTED, sort_codes

FLOATS = st.floats(-2, 2, width=32) | st.sampled_from([0.0, -0.0, np.inf, 1e-45, -1e-45, 1e-30, -1e-30])


def assert_sorted(codes: Any, distances: Any) -> None:
    order = np.stack([sorted(range(len(row)), key=lambda item: (float(row[item]), item)) for row in distances])
    assert sort_codes(codes, distances).tolist() == np.take_along_axis(codes, order, axis=1).tolist()


@pytest.fixture(params=[True, False], ids=["radix", "packed"])
def _sort_both_ways(request: Any, monkeypatch: Any) -> None:
    """Sort short rows by the code for long ones too."""
    monkeypatch.setattr(ranks, "_has_radix_sort", lambda: request.param)
    monkeypatch.setattr(ranks, "LONG", 1)


@pytest.mark.usefixtures("_sort_both_ways")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@given(st.lists(FLOATS, min_size=1, max_size=60), st.integers(1, 4))
def test_codes_are_in_the_order_of_distance_and_index(dtype: Any, values: list[float], rows: int) -> None:
    rng = np.random.default_rng(len(values))
    distances = np.stack([rng.permutation(np.array(values, dtype=np.float32)) for _ in range(rows)])
    assert_sorted(rng.integers(0, np.iinfo(dtype).max, distances.shape).astype(dtype), distances)


@pytest.mark.parametrize("items", [LONG - 1, LONG, RADIX_SORTED - 1, RADIX_SORTED, RADIX_SORTED + 1])
@pytest.mark.parametrize("digits", [2, 7])
def test_rows_of_all_lengths(items: int, digits: int) -> None:
    """Around the lengths from which on rows are filled up, and need not be; with many ties and few."""
    rng = np.random.default_rng(0)
    distances = rng.uniform(-1, 1, (2, items)).round(digits).astype(np.float32)
    distances[:, 7] = np.inf
    assert_sorted(rng.integers(0, 256, distances.shape).astype(np.uint8), distances)
