"""Batches that the losses are tested with: random embeddings, and the published ones of tests/vectors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor


def draw_embeddings(count: int, size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw embeddings (count, size) from the standard normal distribution."""
    return torch.randn(count, size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


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
