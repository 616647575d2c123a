"""Print the time of each loss forward and backward, beside a yardstick, and the memory that a step adds.

python scripts/bench_losses.py    # one minute on two cores

A batch has B float32 embeddings of 512 dimensions, in classes of 4 images and super-classes of 32 classes, like
HAPPIER's batches on SOP. A loss and its yardstick are measured in turns. The printed ratio is the median over the
turns.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from process_memory import AddedMemory
from pytorch_metric_learning.losses import RankedListLoss as LibraryRankedListLoss  # type: ignore[import-untyped]
from torch import Tensor, nn

from dml.losses.happier import SmoothHierarchicalAPLoss
from dml.losses.nra import NonlinearRankApproximationLoss
from dml.losses.recall_at_k import RecallAtKLoss
from dml.losses.rll import RankedListLoss
from dml.losses.tuplet import TupletLoss

SIZE, CLASS, SUPER_CLASS = 512, 4, 32


class Row(NamedTuple):
    """A loss to measure, and the most milliseconds and megabytes that it may take."""

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
    Row("recall@k", RecallAtKLoss, 4000, 3, None, 2048),
]


class FinestLevel(nn.Module):
    """A loss of one level that is given the labels of several levels, and uses the finest."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D), (B, L) -> scalar."""
        value: Tensor = self.loss(embeddings, labels[:, 0])
        return value


class LogSumExp(nn.Module):
    """The least that a loss of all pairs does: it reduces their similarities."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        """(B, D) -> scalar."""
        return (embeddings @ embeddings.T).logsumexp(dim=1).mean()


class Pair(NamedTuple):
    """A loss beside a yardstick, and the largest ratio of their times that is allowed."""

    name: str
    loss: Callable[[], nn.Module]
    beside: str
    yardstick: Callable[[], nn.Module]
    limit: float
    batch: int = 256
    turns: int = 60


def make_library_rll() -> nn.Module:
    """Make pytorch-metric-learning's RLL with this project's parameters: boundary margin alpha = 1.2, Tn = 10."""
    return FinestLevel(LibraryRankedListLoss(margin=0.4, Tn=10, imbalance=0.5, alpha=1.2, Tp=0))


PAIRS = [
    Pair("RLL", RankedListLoss, "pytorch-metric-learning's", make_library_rll, 1.0),
    Pair("NRA", NonlinearRankApproximationLoss, "logsumexp(E E^T)", LogSumExp, 2.0),
    Pair("tuplet", TupletLoss, "logsumexp(E E^T)", LogSumExp, 2.0),
    Pair("recall@k", RecallAtKLoss, "logsumexp(E E^T)", LogSumExp, 4.0, batch=4000, turns=5),
]


def time_step(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> float:
    """Return the milliseconds of one forward and backward pass."""
    leaf = embeddings.clone().requires_grad_()
    started = perf_counter()
    loss(leaf, labels).backward()
    return 1000 * (perf_counter() - started)


def measure_peak(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> float:
    """Return the megabytes that a step adds at most; only a first step shows them, before freed memory is reused."""
    with AddedMemory() as added:
        time_step(loss, embeddings, labels)
    return added.peak


def draw_batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw embeddings (B, D) and labels (B, 2)."""
    fine = torch.arange(size) // CLASS
    return torch.randn(size, SIZE, generator=generator), torch.stack([fine, fine // SUPER_CLASS], dim=1)


def print_alone(generator: torch.Generator) -> None:
    """Print the table of losses alone, with their memory."""
    print(f"{'loss':<28}{'batch':>6}{'ms':>9}{'limit':>7}{'MB':>7}{'limit':>7}")
    for row in ROWS:
        embeddings, labels = draw_batch(row.batch, generator)
        loss = row.build()
        added = measure_peak(loss, embeddings, labels)
        taken = median(time_step(loss, embeddings, labels) for _ in range(row.repeats))
        limit = "" if row.milliseconds is None else f"{row.milliseconds:.0f}"
        print(f"{row.name:<28}{row.batch:>6}{taken:>9.1f}{limit:>7}{added:>7.0f}{row.megabytes:>7.0f}")


def print_beside(generator: torch.Generator) -> None:
    """Print the table of losses beside their yardsticks."""
    print(f"\n{'loss':<8}{'batch':>6}{'ms':>9}  {'beside':<26}{'ms':>9}{'ratio':>8}{'limit':>7}")
    for pair in PAIRS:
        embeddings, labels = draw_batch(pair.batch, generator)
        both = pair.loss(), pair.yardstick()
        turns = [tuple(time_step(loss, embeddings, labels) for loss in both) for _ in range(pair.turns)]
        milliseconds, yardstick = (median(times) for times in zip(*turns, strict=True))
        ratio = median(first / second for first, second in turns)
        measured = f"{milliseconds:>9.2f}  {pair.beside:<26}{yardstick:>9.2f}{ratio:>8.2f}"
        print(f"{pair.name:<8}{pair.batch:>6}{measured}{pair.limit:>7.1f}")


def main() -> None:
    """Measure and print both tables."""
    print(f"{torch.get_num_threads()} threads")
    generator = torch.Generator().manual_seed(0)
    print_alone(generator)
    print_beside(generator)


if __name__ == "__main__":
    main()
