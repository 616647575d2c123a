"""The losses, their gradients and their waits on a GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch
from every_loss import LABELS, LOSSES, batch, build, value_and_gradient

WITHOUT_WAITS = ["csl", "nra", "rll", "softmax", "tuplet"]
"""Losses of which docs/performance.md says that a step doesn't wait for the GPU."""


@contextmanager
def refused_waits(device: str) -> Iterator[None]:
    """Within it whatever makes the CPU wait for the GPU is an error."""
    if device == "cpu":
        yield
        return
    try:
        with warnings.catch_warnings(action="ignore"):  # the mode is a prototype, torch says
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_those_of_the_cpu(name: str, device: str) -> None:
    on_cpu = build(name).double()
    on_gpu = deepcopy(on_cpu).to(device)
    torch.manual_seed(7)
    value, gradient = value_and_gradient(on_cpu, batch().double(), LABELS)
    torch.manual_seed(7)
    found, its_gradient = value_and_gradient(on_gpu, batch().double().to(device), LABELS.to(device))
    torch.testing.assert_close(found.cpu(), value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(its_gradient.cpu(), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_widened(name: str, dtype: torch.dtype, device: str) -> None:
    loss, half, labels = build(name).to(device), batch().to(device, dtype), LABELS.to(device)
    torch.manual_seed(7)
    with torch.autocast(device, dtype=dtype):
        value, gradient = value_and_gradient(loss, half, labels)
    torch.manual_seed(7)
    exact, _ = value_and_gradient(loss, half.float(), labels)
    torch.testing.assert_close(value.float(), exact)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", WITHOUT_WAITS)
def test_a_step_does_not_wait(name: str, device: str) -> None:
    loss, embeddings, labels = build(name).to(device), batch().to(device), LABELS.to(device)
    value_and_gradient(loss, embeddings, labels)  # libraries may wait when they start
    with refused_waits(device):
        value_and_gradient(loss, embeddings, labels)
