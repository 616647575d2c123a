import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dml.ops.pairs import masked_logsumexp, masked_softmax

rows = st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=1, max_size=6)


def loop(entries: list[tuple[float, bool]]) -> list[float]:
    total = sum(math.exp(logit) for logit, is_chosen in entries if is_chosen)
    return [math.exp(logit) / total if is_chosen else 0.0 for logit, is_chosen in entries]


@given(rows)
def test_equals_a_loop(entries: list[tuple[float, bool]]) -> None:
    logits = torch.tensor([[logit for logit, _ in entries]], dtype=torch.float64)
    mask = torch.tensor([[is_chosen for _, is_chosen in entries]])
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


# logsumexp


@given(rows)
def test_logsumexp_equals_a_loop_and_its_gradient_is_the_softmax(entries: list[tuple[float, bool]]) -> None:
    logits = torch.tensor([[logit for logit, _ in entries]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[is_chosen for _, is_chosen in entries]])
    value = masked_logsumexp(logits, mask)
    value.sum().backward()
    total = sum(math.exp(logit) for logit, is_chosen in entries if is_chosen)
    assert value.item() == pytest.approx(math.log(total) if total else -math.inf, abs=1e-12)
    assert logits.grad is not None
    expected = loop(entries) if total else [0.0] * len(entries)
    torch.testing.assert_close(logits.grad, torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logsumexp_of_huge_and_vanishing_terms(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e6, 1e6, -1e6], [0.0, -70.0, -1000.0]], dtype=dtype, requires_grad=True)
    value = masked_logsumexp(logits, torch.ones(2, 3, dtype=torch.bool))
    value.sum().backward()
    assert logits.grad is not None
    assert value.tolist() == pytest.approx([1e6 + math.log(2), 0.0])
    assert logits.grad[0].tolist() == [0.5, 0.5, 0.0]
    # what is dropped is far below the precision of the sum
    assert logits.grad[1].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-28)


def test_gradcheck_of_logsumexp() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(4, 6, generator=generator) < 0.6
    assert torch.autograd.gradcheck(lambda x: masked_logsumexp(x, mask), logits)
