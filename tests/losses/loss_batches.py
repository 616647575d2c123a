"""Batches that the losses are tested with: random embeddings, and the published ones of tests/vectors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def draw_embeddings(count: int, size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw embeddings (count, size) from the standard normal distribution."""
    return torch.randn(count, size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def check_against_loop(
    loss: Loss, loop: Callable[[Tensor], Tensor], embeddings: Tensor, labels: Tensor, tolerance: float = 1e-9
) -> None:
    """Check that value and gradient are those of a loop over the pairs, which may give a constant."""
    fast, slow = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    value, expected = loss(fast, labels), loop(slow)
    torch.testing.assert_close(value, expected, atol=tolerance, rtol=tolerance)
    value.backward()
    if expected.requires_grad:
        expected.backward()
    gradient = torch.zeros_like(slow) if slow.grad is None else slow.grad
    torch.testing.assert_close(fast.grad, gradient, atol=10 * tolerance, rtol=10 * tolerance)


def read_batches(name: str) -> list[dict[str, Any]]:
    """Read the batches of tests/vectors/<name>.json, each with the values that losses are expected to have for it."""
    batches: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors" / f"{name}.json").read_text())
    return batches


def published_cases(name: str, loss: str) -> list[Any]:
    """Return a parameter set (batch, expected) for each value of a loss in tests/vectors/<name>.json."""
    return [
        pytest.param(batch, expected, id=f"{i}-{expected['params']}")
        for i, batch in enumerate(read_batches(name))
        for expected in batch["expected"]
        if expected["loss"] == loss
    ]
