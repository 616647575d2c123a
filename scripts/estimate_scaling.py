"""Print the tables of docs/scaling.md that are computed: exchanged bytes, memory of losses, and a simulated timeline.

python scripts/estimate_scaling.py            # the tables, as Markdown
python scripts/estimate_scaling.py --measure  # counts the bytes of `COSTS` again, in a minute

No number here was measured on a GPU. The bytes of each loss were counted on a CPU by PyTorch's profiler, which adds up
what tensors allocate. The times are calculated from `MACHINE` and `RUN`.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from dml.losses.compose import loss_value
from dml.losses.happier import SmoothHierarchicalAPLoss
from dml.losses.nra import NonlinearRankApproximationLoss
from dml.losses.recall_at_k import RecallAtKLoss
from dml.losses.rll import RankedListLoss
from dml.losses.smooth_ap import SmoothAPLoss
from dml.losses.tuplet import TupletLoss

FLOAT, INTEGER, MIB, GIB = 4, 8, 2**20, 2**30


class Cost(NamedTuple):
    """What a loss allocates in its forward and backward pass in float32.

    Args:
        peak: bytes for each pair of a query and an item, at the peak.
        total: bytes for each pair, added up over all tensors.
        blocks: bytes of its blocks, whose size doesn't depend on the batch.
        is_sharded: whether the loss takes queries.
    """

    peak: float
    total: float
    blocks: float = 0.0
    is_sharded: bool = True


COSTS = {
    "rll": Cost(40, 132),
    "recall_at_k": Cost(0, 44, 65e6),
    "h_ap": Cost(93, 2865),
    "smooth_ap": Cost(65, 182),
    "tuplet": Cost(16, 30, is_sharded=False),
    "nra": Cost(38, 57, is_sharded=False),
}
"""Counted with ``--measure``, for classes of 4 images and super-classes of 32 classes."""

LOSSES: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "rll": (RankedListLoss, (1024, 2048)),
    "recall_at_k": (RecallAtKLoss, (4096, 6144)),
    "h_ap": (SmoothHierarchicalAPLoss, (1024, 2048)),
    "smooth_ap": (SmoothAPLoss, (1024, 2048)),
    "tuplet": (TupletLoss, (1024, 2048)),
    "nra": (NonlinearRankApproximationLoss, (1024, 2048)),
}
"""Losses, and the two batches from which their bytes are counted."""


class Machine(NamedTuple):
    """A GPU and its connections: data-sheet values of an A100 80 GB in nodes of 8, and the share that is reached."""

    half_flops: float = 312e12  # of bfloat16 a second, in the network
    network_share: float = 0.35  # of half_flops that the network reaches
    float_flops: float = 19.5e12  # of float32 a second: losses don't use TF32
    memory: float = 2.0e12  # bytes a second between the GPU and its memory
    node_gpus: int = 8
    node_link: float = 300e9  # bytes a second of each GPU to the others of its node, in each direction
    node_network: float = 8 * 25e9  # bytes a second between nodes: eight cards of 200 Gbit/s work on each exchange
    reached: float = 0.7  # share of float_flops, memory and links that is reached
    latency: float = 5e-6  # seconds of each message


class Run(NamedTuple):
    """ResNet-50 in bfloat16 with one head."""

    images: int = 64  # of each GPU
    flops: float = 2 * 4.1e9  # of an image of 224 x 224, forward
    parameters: float = 25.6e6  # their gradients are averaged in float32
    dim: int = 512
    reads: int = 2  # bytes that a loss reads for each byte that it writes
    bucket: float = (
        25 * 2**20
    )  # bytes of the gradients that DistributedDataParallel sends last, after the backward pass


MACHINE, RUN = Machine(), Run()


def count_bytes(loss: nn.Module, batch: int, queries: int, dim: int = 64) -> tuple[int, int]:
    """Count the bytes that a loss allocates for some queries of a batch -> at the peak, and in all."""
    labels = torch.stack([torch.arange(batch) // 4, torch.arange(batch) // 128], dim=1)
    embeddings = torch.randn(batch, dim, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss_value(loss, embeddings, labels, None, slice(0, queries)).backward()  # type: ignore[no-untyped-call]
    results = profiler.profiler.kineto_results
    events = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    now = peak = total = 0
    for _, size in events:
        now += size
        peak, total = max(peak, now), total + max(size, 0)
    return peak, total


def measure() -> Iterator[str]:
    """Count the bytes of each loss at two batches; the slope is that of a pair, the rest that of the blocks."""
    for name, (build, batches) in LOSSES.items():
        (peak, total), (larger, larger_total) = (count_bytes(build(), batch, batch) for batch in batches)
        pairs, more = batches[0] ** 2, batches[1] ** 2 - batches[0] ** 2
        slope, total_slope = (larger - peak) / more, (larger_total - total) / more
        yield f"{name}: peak {slope:.1f}, total {total_slope:.1f}, blocks {(peak - slope * pairs) / 1e6:.1f}e6"


def exchanged_bytes(batch: int, count: int, dim: int, levels: int = 1) -> dict[str, float]:
    """Compute the bytes that each of ``count`` processes receives in a step for the loss of one head."""
    others = batch - batch / count
    return {
        "embeddings": others * dim * FLOAT,
        "labels and rows": others * (levels + 1) * INTEGER,
        "gradients": others * dim * FLOAT,
        "values": (count - 1) * FLOAT,
    }


def loss_bytes(name: str, batch: int, queries: float) -> float:
    """Compute the bytes of a loss at its peak: its pairs, its blocks, and four copies of the batch.

    Two of the copies are those of the gathering, two are those of the loss.
    """
    cost = COSTS[name]
    return cost.peak * queries * batch + cost.blocks + 4 * batch * RUN.dim * FLOAT


def loss_seconds(name: str, batch: int, queries: float) -> float:
    """Calculate the time of a loss: what it reads and writes, and three products of matrices."""
    moved = (1 + RUN.reads) * COSTS[name].total * queries * batch
    products = 3 * 2 * queries * batch * RUN.dim
    return moved / (MACHINE.memory * MACHINE.reached) + products / (MACHINE.float_flops * MACHINE.reached)


class Timeline(NamedTuple):
    """The seconds of the parts of a step, one after the other."""

    forward: float
    gather: float
    loss: float
    scatter: float
    backward: float
    average: float  # what the averaging of the gradients takes after the backward pass


def simulate(name: str, count: int, *, shard: bool) -> Timeline:
    """Calculate the timeline of a step on ``count`` GPUs."""
    batch = RUN.images * count
    link = MACHINE.reached * (MACHINE.node_link if count <= MACHINE.node_gpus else MACHINE.node_network)
    forward = RUN.images * RUN.flops / (MACHINE.half_flops * MACHINE.network_share)
    received = exchanged_bytes(batch, count, RUN.dim)
    ring, tree = (count - 1) * MACHINE.latency, 2 * math.log2(count) * MACHINE.latency
    gather = (received["embeddings"] + received["labels and rows"]) / link + 3 * ring
    gather += received["values"] / link + ring if shard else 0.0
    sent_twice = 2 * (1 - 1 / count) / link
    average = RUN.parameters * FLOAT * sent_twice + tree
    return Timeline(
        forward,
        gather,
        loss_seconds(name, batch, RUN.images if shard else batch),
        received["gradients"] / link + ring,
        2 * forward,
        max(average - 2 * forward, RUN.bucket * sent_twice + tree),
    )


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table whose numbers are aligned right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_size(size: float) -> str:
    """Format bytes in B, KiB, MiB or GiB.

    >>> format_size(3 * 2**20), format_size(2**31)
    ('3.0 MiB', '2.0 GiB')
    """
    if size < 1024:
        return f"{size:.0f} B"
    unit, name = (GIB, "GiB") if size >= GIB else (MIB, "MiB") if size >= MIB else (1024, "KiB")
    return f"{size / unit:,.1f} {name}" if size < 100 * unit else f"{size / unit:,.0f} {name}"


def make_exchange_table() -> str:
    """Make the table of the bytes that a process receives."""
    rows = []
    for batch in (4096, 16384, 65536):
        for count in (2, 8, 64):
            parts = exchanged_bytes(batch, count, RUN.dim)
            rows.append([f"{batch:,}", str(count), *map(format_size, parts.values())])
    return format_table(["batch", "processes", "embeddings", "labels and rows", "gradients", "values"], rows)


def make_cost_table() -> str:
    """Make the table of the bytes that each loss was counted to allocate."""
    head = ["loss", "bytes of a pair, P", "bytes of the blocks, b", "sharded"]
    rows = [
        [f"`{name}`", f"{cost.peak:g}", format_size(cost.blocks), "yes" if cost.is_sharded else "no"]
        for name, cost in COSTS.items()
    ]
    return format_table(head, rows)


def make_memory_table() -> str:
    """Make the table of the memory of each loss."""
    head = ["loss", "4,096", "16,384", "65,536", "65,536 on 8", "65,536 on 64", "65,536 on 512"]
    rows = []
    for name, cost in COSTS.items():
        whole = [loss_bytes(name, batch, batch) for batch in (4096, 16384, 65536)]
        parts = [loss_bytes(name, 65536, 65536 / (count if cost.is_sharded else 1)) for count in (8, 64, 512)]
        rows.append([f"`{name}`", *map(format_size, (*whole, *parts))])
    return format_table(head, rows)


def make_timeline_table() -> str:
    """Make the table of the simulated steps."""
    head = ["loss", "GPUs", "batch", "`shard_loss`", "forward", "gather", "loss", "scatter", "backward", "average"]
    rows = []
    for name in ("rll", "recall_at_k", "h_ap"):
        for count in (8, 64, 512):
            for shard in (False, True):
                parts, batch = simulate(name, count, shard=shard), RUN.images * count
                memory = loss_bytes(name, batch, RUN.images if shard else batch)
                about = [f"`{name}`", str(count), f"{batch:,}", str(shard).lower()]
                times = [f"{1000 * seconds:,.1f}" for seconds in (*parts, sum(parts))]
                rows.append([*about, *times, format_size(memory)])
    return format_table([*head, "**step, ms**", "memory of the loss"], rows)


TABLES = (make_exchange_table, make_cost_table, make_memory_table, make_timeline_table)


def main() -> None:
    """Print the tables, or count the bytes that they begin from."""
    if sys.argv[1:] == ["--measure"]:
        for line in measure():
            print(line, flush=True)
        return
    print("\n\n".join(make_table() for make_table in TABLES))


if __name__ == "__main__":
    main()
