"""Print what a sharded loss takes of each process: memory, processor time, and the time of small batches.

python scripts/bench_sharding.py           # five minutes on two cores
python scripts/bench_sharding.py --dim 128 # for embeddings of 128 dimensions

The processes are joined by gloo and have one thread each. A step gathers the float32 embeddings of all processes,
computes the loss as a training does, and takes the backward pass down to the embeddings of the process. The whole batch
has classes of 4 images and super-classes of 32 classes.

The first table has a row for each number of processes, with `shard_loss` and without. Each row has new processes. MiB
are what the first step adds to the memory of a process at most. Seconds are processor time, which doesn't depend on how
many processes share a core; the largest of all processes is printed. The second table has the time of a step of a small
batch on two processes: both ways in turns, the median, and the median of the ratio.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import sys
import tempfile
import warnings
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from process_memory import AddedMemory
from torch import Tensor, nn
from torch.distributed.nn import functional as dist_functional
from torch.multiprocessing import start_processes  # type: ignore[attr-defined]

from dml.losses.happier import SmoothHierarchicalAPLoss
from dml.losses.recall_at_k import RecallAtKLoss
from dml.losses.rll import RankedListLoss
from dml.training.distributed import compute_losses

BATCH, CLASS, SUPER_CLASS = 4096, 4, 32
ROWS = ((1, False), (2, False), (2, True), (4, False), (4, True))
"""Numbers of processes, and whether the loss is sharded over them."""
SMALL_BATCHES, TURNS = (60, 256), 40
LOSSES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "rll": (RankedListLoss, 3),
    "recall_at_k": (RecallAtKLoss, 3),
    "h_ap": (SmoothHierarchicalAPLoss, 1),
}
"""Losses, and how many steps of the large batch are timed."""


@dataclass
class Module:
    """What `compute_losses` needs of a training: the process, and Lightning's gathering."""

    global_rank: int
    trainer: SimpleNamespace

    def all_gather(self, part: Tensor, *, sync_grads: bool) -> Tensor:
        """Gather tensors (...) from W processes -> (W, ...), as Lightning does."""
        if sync_grads:
            return torch.stack(dist_functional.all_gather(part))  # type: ignore[no-untyped-call]
        parts = [torch.empty_like(part) for _ in range(self.trainer.world_size)]
        dist.all_gather(parts, part)
        return torch.stack(parts)


@dataclass
class Share:
    """The share of one process in a batch, and the loss to compute of it.

    Args:
        name: name of the loss in `LOSSES`.
        dim: size of an embedding.
        rank: index of the process.
        count: number of processes.
    """

    name: str
    dim: int
    rank: int
    count: int

    def __post_init__(self) -> None:
        self.loss = LOSSES[self.name][0]()
        self.module: Any = Module(self.rank, SimpleNamespace(world_size=self.count))

    def step(self, batch: int, *, shard: bool) -> tuple[float, float]:
        """Take one step of a batch -> its processor time and its time, in seconds."""
        size = batch // self.count
        rows = torch.arange(size) + self.rank * size
        labels = torch.stack([rows // CLASS, rows // (CLASS * SUPER_CLASS)], dim=1)
        embeddings = torch.randn(size, self.dim, generator=torch.Generator().manual_seed(self.rank), requires_grad=True)
        if self.count > 1:
            dist.barrier()
        used, started = process_time(), perf_counter()
        terms = compute_losses(self.module, {"H": self.loss}, {"H": embeddings}, labels, rows, shard=shard)
        terms["H"].backward()  # type: ignore[no-untyped-call]
        return process_time() - used, perf_counter() - started


def measure_large(share: Share, shard: bool) -> tuple[float, float]:
    """Return the MiB that a step of the large batch adds at most, and its seconds of processor time."""
    share.step(8 * share.count, shard=shard)  # loads kernels and opens connections
    with AddedMemory() as added:  # only a first step shows its memory, before freed memory is reused
        share.step(BATCH, shard=shard)
    return added.peak, median(share.step(BATCH, shard=shard)[0] for _ in range(LOSSES[share.name][1]))


def measure_small(share: Share, batch: int) -> tuple[float, float, float]:
    """Return the milliseconds of a step without and with sharding, and the median ratio of the two."""
    share.step(batch, shard=True)
    turns = [[1000 * share.step(batch, shard=shard)[1] for shard in (False, True)] for _ in range(TURNS)]
    unsharded, sharded = (median(times) for times in zip(*turns, strict=True))
    return unsharded, sharded, median(second / first for first, second in turns)


def run_process(
    rank: int, count: int, folder: str, measure: Callable[..., Any], name: str, dim: int, *arguments: Any
) -> None:
    """Measure in one of the processes, and write the result to a file of the folder."""
    warnings.filterwarnings("ignore", message=".*all_gather is deprecated")  # Lightning calls it, too
    torch.set_num_threads(1)
    if count > 1:
        dist.init_process_group("gloo", f"file://{folder}/store", timedelta(minutes=10), rank=rank, world_size=count)
    torch.save(measure(Share(name, dim, rank, count), *arguments), f"{folder}/{rank}.pt")
    if count > 1:
        dist.destroy_process_group()


def on_processes(count: int, measure: Callable[..., Any], name: str, dim: int, *arguments: Any) -> list[Any]:
    """Measure in each of several new processes -> their results, in the order of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        # Copies of this process needn't import anything, which takes longer than most of the steps.
        start: Any = start_processes  # which has no types
        start(run_process, (count, folder, measure, name, dim, *arguments), nprocs=count, start_method="fork")
        return [torch.load(f"{folder}/{rank}.pt") for rank in range(count)]


def main() -> None:
    """Measure and print both tables."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dim", type=int, default=512, help="size of an embedding")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=[*LOSSES])
    options = parser.parse_args()
    python = sys.version.split()[0]
    print(f"batch {BATCH}, {options.dim} dimensions, one thread a process, torch {torch.__version__}, Python {python}")
    print(f"{'loss':<14}{'processes':>10}{'shard_loss':>12}{'MiB':>8}{'s':>8}")
    for name in options.losses:
        for count, shard in ROWS:
            results = on_processes(count, measure_large, name, options.dim, shard)
            added, seconds = (max(values) for values in zip(*results, strict=True))
            choice = str(shard).lower() if count > 1 else "-"
            print(f"{name:<14}{count:>10}{choice:>12}{added:>8.0f}{seconds:>8.2f}", flush=True)
    print(f"\n{'loss':<14}{'batch':>10}{'whole, ms':>12}{'sharded, ms':>14}{'ratio':>8}")
    for name in options.losses:
        for batch in SMALL_BATCHES:
            unsharded, sharded, ratio = on_processes(2, measure_small, name, options.dim, batch)[0]
            print(f"{name:<14}{batch:>10}{unsharded:>12.2f}{sharded:>14.2f}{ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
