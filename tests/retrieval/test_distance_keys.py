from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.retrieval.distance_keys import TOO_SMALL, keys_fit, make_keys, put_last

BITS = pytest.mark.parametrize("bits", TOO_SMALL)


def floats_above(magnitude: float) -> Any:
    """Floats of both signs from the one above a magnitude up to the one below 2, and 0."""
    least = float(np.nextafter(np.float32(magnitude), np.float32(1)))
    above = st.floats(least, float(np.nextafter(np.float32(2), np.float32(0))), width=32)
    return above | above.map(lambda value: -value) | st.sampled_from([0.0, -0.0, least, -least])


def fits(distances: Any, bits: int) -> bool:
    row = np.array([distances], dtype=np.float32)
    return keys_fit(row, bits, np.empty(row.shape, dtype=np.int32))


@BITS
@given(data=st.data())
def test_keys_are_in_the_order_of_distances(bits: int, data: Any) -> None:
    distances = np.array(data.draw(st.lists(floats_above(TOO_SMALL[bits]), min_size=2, max_size=30)), dtype=np.float32)
    assert fits(distances, bits)
    keys = make_keys(distances, bits).astype(np.int64)
    assert (np.sign(keys[:, None] - keys) == np.sign(distances[:, None] - distances)).all()
    assert not (keys & (1 << bits) - 1).any()
    excluded = make_keys(np.append(distances, np.inf).astype(np.float32)[None], bits)
    put_last(excluded, bits, np.array([[len(distances), -1]]))
    assert (excluded[0, -1] >= keys).all()


@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("sign", [1, -1])
def test_smaller_magnitudes_do_not_fit(bits: int, sign: int) -> None:
    smallest = np.nextafter(np.float32(TOO_SMALL[bits]), np.float32(1))
    assert fits([0, 0.5, np.inf, sign * smallest], bits)
    assert not fits([0, 0.5, np.inf, sign * TOO_SMALL[bits]], bits)
    assert not fits([0.5], 4)
    assert fits([0, 0], bits)
