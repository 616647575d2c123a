import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dml.ops.reductions import masked_softmax

lenient = settings(deadline=None)  # the cores are shared

rows = st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=1, max_size=6)


def loop(entries: list[tuple[float, bool]]) -> list[float]:
    total = sum(math.exp(logit) for logit, kept in entries if kept)
    return [math.exp(logit) / total if kept else 0.0 for logit, kept in entries]


@lenient
@given(rows)
def test_equals_a_loop(entries: list[tuple[float, bool]]) -> None:
    logits = torch.tensor([[logit for logit, _ in entries]], dtype=torch.float64)
    mask = torch.tensor([[kept for _, kept in entries]])
    expected = torch.tensor([loop(entries)], dtype=torch.float64)
    torch.testing.assert_close(masked_softmax(logits, mask), expected)


def softmax_and_gradient(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.requires_grad_()
    weights = masked_softmax(logits, mask)
    (gradient,) = torch.autograd.grad((weights * torch.arange(weights.shape[-1])).sum(), logits)
    return weights, gradient


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_row_without_entries_is_zero_with_a_zero_gradient(dtype: torch.dtype) -> None:
    mask = torch.tensor([[False, False, False], [True, False, True]])
    weights, gradient = softmax_and_gradient(torch.ones(2, 3, dtype=dtype), mask)
    assert weights.tolist() == [[0, 0, 0], [0.5, 0, 0.5]]
    assert (gradient[0] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("size", [1e6, -1e6, 1e30, -1e30])
def test_huge_logits(size: float) -> None:
    mask = torch.tensor([[True, True, False], [True, False, True]])
    weights, gradient = softmax_and_gradient(torch.tensor([[size, size, -size], [size, -size, 0.0]]), mask)
    assert weights.tolist() == [[0.5, 0.5, 0], [float(size > 0), 0, float(size < 0)]]
    assert gradient.isfinite().all()


@pytest.mark.parametrize("left_out", [torch.inf, -torch.inf, torch.nan, 1e38])
def test_what_is_left_out_has_no_influence(left_out: float) -> None:
    mask = torch.tensor([[True, False, True]])
    weights, gradient = softmax_and_gradient(torch.tensor([[0.0, left_out, 0.0]]), mask)
    assert weights.tolist() == [[0.5, 0, 0.5]]
    assert gradient.tolist() == [[-0.5, 0, 0.5]]
