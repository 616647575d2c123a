import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dml.ops.pairs import unit_distances

RESOLUTION = {torch.float32: 1.4e-3, torch.float64: 6e-8}


def unit_rows(seed: int, count: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    rows = np.random.default_rng(seed).normal(size=(count, size))
    return torch.from_numpy(rows / np.linalg.norm(rows, axis=1, keepdims=True)).to(dtype)


def loop(rows: Tensor, columns: Tensor) -> list[list[float]]:
    return [[math.dist(row, column) for column in columns.tolist()] for row in rows.tolist()]


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    size=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equal_a_loop_in_float64(seed: int, rows: int, columns: int, size: int, dtype: torch.dtype) -> None:
    left, right = unit_rows(seed, rows, size, dtype), unit_rows(seed + 1, columns, size, dtype)
    expected = torch.tensor(loop(left, right), dtype=torch.float64)
    distances = unit_distances(left, right)
    assert distances.shape == (rows, columns)
    assert distances.dtype == dtype
    far = expected > 0.1  # closer pairs lose digits in the product
    atol = 10 * torch.finfo(dtype).eps / 0.1
    torch.testing.assert_close(distances[far].double(), expected[far], rtol=0, atol=atol)
    torch.testing.assert_close(distances.double(), expected, rtol=0, atol=2 * RESOLUTION[dtype])


@pytest.mark.parametrize("dtype", RESOLUTION)
def test_the_resolution_is_as_documented(dtype: torch.dtype) -> None:
    for factor, coincident in ((0.5, True), (2.0, False)):
        angle = factor * RESOLUTION[dtype]
        pair = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=dtype)
        assert (float(unit_distances(pair, pair)[0, 1]) == 0) is coincident


@pytest.mark.parametrize("dtype", RESOLUTION)
@pytest.mark.parametrize("size", [2, 64, 512])
def test_coincident_points_have_distance_and_gradient_zero(dtype: torch.dtype, size: int) -> None:
    rows = unit_rows(0, 5, size, dtype)[[0, 1, 1, 2, 0]].requires_grad_()
    distances = unit_distances(rows, rows)
    same = torch.eye(5, dtype=torch.bool)
    same[0, 4] = same[4, 0] = same[1, 2] = same[2, 1] = True
    assert (distances[same] == 0).all()
    assert (distances[~same] > 0).all()
    (gradient,) = torch.autograd.grad(distances[same].sum(), rows, retain_graph=True)
    assert (gradient == 0).all()
    (gradient,) = torch.autograd.grad(distances.sum(), rows)
    assert gradient.isfinite().all()


def test_gradients_are_those_of_finite_differences() -> None:
    rows, columns = unit_rows(0, 4, 3).requires_grad_(), unit_rows(1, 5, 3).requires_grad_()
    assert torch.autograd.gradcheck(unit_distances, (rows, columns))


def test_the_far_end_of_the_sphere() -> None:
    poles = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert unit_distances(poles, poles).tolist() == [[0.0, 2.0], [2.0, 0.0]]


def test_nan_is_not_hidden() -> None:
    """A network that diverged must not look like one whose embeddings coincide."""
    rows = unit_rows(0, 3, 4)
    rows[1, 2] = torch.nan
    distances = unit_distances(rows, rows)
    assert distances[1].isnan().all()
    assert distances[:, 1].isnan().all()
    assert not distances[0, [0, 2]].isnan().any()
