"""Prints how long a loss takes forward and backward, and the memory that this adds to the process.

python scripts/bench_losses.py    # one minute on two cores

Batches of B embeddings of 512 dimensions in classes of 4, 32 classes to a super-class (SOP's batches), float32.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dml.losses.happier import SmoothHierarchicalAPLoss

SIZE, CLASS, SUPER_CLASS = 512, 4, 32


class Row(NamedTuple):
    """A loss to measure, and what its issue allows it."""

    name: str
    build: Callable[[], nn.Module]
    batch: int
    repeats: int
    milliseconds: float | None
    megabytes: float


ROWS = [
    Row("smooth H-AP", SmoothHierarchicalAPLoss, 256, 30, 80, 400),
    Row("smooth H-AP, smooth H-rank", lambda: SmoothHierarchicalAPLoss(smooth_h_rank=True), 256, 30, None, 400),
    Row("smooth H-AP", SmoothHierarchicalAPLoss, 1024, 3, None, 2048),
]


def step(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> float:
    """Milliseconds of one forward and backward pass."""
    leaf = embeddings.clone().requires_grad_()
    started = perf_counter()
    loss(leaf, labels).backward()
    return 1000 * (perf_counter() - started)


def memory(name: str) -> float:
    """Megabytes of the process: "VmRSS" now, "VmHWM" at most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def peak(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> float:
    """Megabytes that a step adds at most; meaningful in the loss's first step, before freed memory is reused."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = memory("VmRSS")
    step(loss, embeddings, labels)
    return memory("VmHWM") - before


def main() -> None:
    """Prints the table."""
    print(f"{torch.get_num_threads()} threads")
    print(f"{'loss':<28}{'batch':>6}{'ms':>9}{'limit':>7}{'MB':>7}{'limit':>7}")
    generator = torch.Generator().manual_seed(0)
    for row in ROWS:
        fine = torch.arange(row.batch) // CLASS
        labels = torch.stack([fine, fine // SUPER_CLASS], dim=1)
        embeddings, loss = torch.randn(row.batch, SIZE, generator=generator), row.build()
        added = peak(loss, embeddings, labels)
        taken = median(step(loss, embeddings, labels) for _ in range(row.repeats))
        limit = "" if row.milliseconds is None else f"{row.milliseconds:.0f}"
        print(f"{row.name:<28}{row.batch:>6}{taken:>9.1f}{limit:>7}{added:>7.0f}{row.megabytes:>7.0f}")


if __name__ == "__main__":
    main()
