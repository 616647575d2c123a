"""What runs leave in their folders, and whether two have left the same."""

import json
from pathlib import Path
from typing import Any

import torch


def metrics(folder: Path) -> dict[str, Any]:
    """The contents of metrics.json."""
    read: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return read


def last(folder: Path) -> dict[str, Any]:
    """The contents of checkpoints/last.ckpt."""
    checkpoint: dict[str, Any] = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return checkpoint


def assert_same_run(whole: Path, resumed: Path) -> None:
    """Weights, the optimizer's state, history and metrics, bit for bit."""
    expected, found = last(whole), last(resumed)
    for name, weights in expected["state_dict"].items():
        assert torch.equal(weights, found["state_dict"][name]), name
    for parameter, state in expected["optimizer_states"][0]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, found["optimizer_states"][0]["state"][parameter][name])
    assert (resumed / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()
    assert metrics(resumed) == metrics(whole)
