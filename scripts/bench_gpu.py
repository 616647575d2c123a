"""Print what losses and evaluations take on a CUDA GPU, beside the work that none of them can avoid.

python scripts/bench_gpu.py               # some minutes
python scripts/bench_gpu.py losses        # a part: losses, evaluation, levels or gallery
python scripts/bench_gpu.py losses --losses rll h_ap

The figure of a loss is the median of several calls, that of another part the figure of one call, each after a call that
isn't counted. The two last parts take longest, and are called once. The clock is read when the GPU has finished. MiB
are what a call adds at most to the memory that torch holds on the GPU. The embeddings are random, with 512 dimensions,
and drawn as for scripts/bench_losses.py and scripts/bench_evaluation.py.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from bench_evaluation import BLOCK, INATURALIST, RANKING, RECALL_AT, SOP, draw_gallery, random_items
from bench_losses import LogSumExp, build_loss, draw_batch
from torch import Tensor, nn

from dml.evaluation import evaluate
from dml.ops.precision import full_float32
from dml.retrieval.kmeans_clusters import kmeans
from dml.retrieval.search import nearest_neighbors
from dml.run.config_folders import CONF

DEVICE = torch.device("cuda")
LARGE = ("rll", "nra", "tuplet", "recall_at_k", "smooth_ap", "h_ap", "roadmap", "multi_similarity")
"""Losses that are measured in batches of every size; all others in the smallest alone."""
BATCHES = (1024, 4096, 16_384)
GALLERY = 1_000_000
LONGEST = 1.0
RANKED: dict[str, Any] = {"metrics": RANKING, "recall_at": RECALL_AT, "clustering": False}
COLUMNS = f"{'':<48}{'seconds':>9}{'MiB':>9}{'ratio':>8}"


class Cost(NamedTuple):
    """What a call takes.

    Args:
        seconds: seconds until the GPU has finished.
        mebibytes: largest memory on the GPU that it adds, in MiB.
    """

    seconds: float
    mebibytes: float


def measure(work: Callable[[], Any], repeats: int = 1, *, warm_up: bool = True) -> Cost:
    """Measure a call so many times, or until `LONGEST` seconds have passed; with a warm-up, after one more call."""
    if warm_up:
        work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while len(times) < repeats and sum(times) < LONGEST:
        started = perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(perf_counter() - started)
    return Cost(median(times), (torch.cuda.max_memory_allocated() - before) / 2**20)


def measure_loss(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Cost:
    """Measure a loss forward and backward."""

    def step() -> None:
        leaf = embeddings.detach().requires_grad_()
        loss(leaf, labels).backward()
        loss.zero_grad()

    return measure(step, 15)


def print_losses(chosen: Sequence[str]) -> None:
    """Print the table of the losses, beside the product of all embeddings and a reduction of it.

    Args:
        chosen: losses to measure in batches of every size; if there are none, `LARGE`, and all in the smallest.
    """
    print(f"{'loss':<28}{'batch':>7}{'ms':>9}{'MiB':>9}{'ratio':>8}")
    all_losses = sorted(path.stem for path in (CONF / "loss").glob("*.yaml"))
    for batch in BATCHES:
        names = chosen or (all_losses if batch == min(BATCHES) else LARGE)
        embeddings, labels = draw_batch(batch, torch.Generator().manual_seed(0))
        on_gpu = embeddings.to(DEVICE), labels.to(DEVICE)
        bare = measure_loss(LogSumExp(), *on_gpu)
        print(f"{'logsumexp(E E^T)':<28}{batch:>7}{1000 * bare.seconds:>9.2f}{bare.mebibytes:>9,.0f}")
        for name in names:
            try:
                cost = measure_loss(build_loss(name, labels).to(DEVICE), *on_gpu)
            except torch.OutOfMemoryError:
                print(f"{name:<28}{batch:>7}  more memory than the GPU has", flush=True)
                continue
            ratio = cost.seconds / bare.seconds
            print(f"{name:<28}{batch:>7}{1000 * cost.seconds:>9.2f}{cost.mebibytes:>9,.0f}{ratio:>8.1f}", flush=True)


def multiply_and_sort(rows: Tensor) -> None:
    """Compute all similarities, and sort their values."""
    with full_float32(DEVICE):
        for block in torch.split(rows, BLOCK):
            (block @ rows.T).sort(dim=1)


def multiply_and_select(rows: Tensor, k: int) -> None:
    """Compute all similarities, and find the largest ones."""
    with full_float32(DEVICE):
        for block in torch.split(rows, BLOCK):
            (block @ rows.T).topk(k, dim=1)


def show(name: str, cost: Cost, bare: Cost | None = None) -> None:
    """Print a cost as a line of the table of evaluations."""
    ratio = f"{cost.seconds / bare.seconds:>8.2f}" if bare else ""
    print(f"{name:<48}{cost.seconds:>9.2f}{cost.mebibytes:>9,.0f}{ratio}", flush=True)


def print_evaluation() -> None:
    """Print the table of an evaluation's parts at the size of SOP."""
    print(COLUMNS)
    embeddings, labels = random_items(*SOP)
    rows = torch.from_numpy(embeddings).to(DEVICE)
    sort = measure(lambda: multiply_and_sort(rows))
    show(f"SOP, {len(rows):,} images: product and sort", sort)
    show("all ranking metrics, two levels", measure(lambda: evaluate(rows, labels, **RANKED)), sort)
    show("the same, finest level alone", measure(lambda: evaluate(rows, labels[:, 0], **RANKED)), sort)
    select = measure(lambda: multiply_and_select(rows, RECALL_AT[-1] + 1))
    show(f"product and the nearest {RECALL_AT[-1]:,}", select)
    recall: dict[str, Any] = {**RANKED, "metrics": ("recall",)}
    show(f"recall@K alone, K up to {RECALL_AT[-1]:,}", measure(lambda: evaluate(rows, labels, **recall)), select)
    show("nearest_neighbors", measure(lambda: nearest_neighbors(rows, RECALL_AT[-1])), select)
    clusters = len(np.unique(labels[:, 0]))
    show(f"k-means, {clusters:,} clusters, 20 rounds", measure(lambda: kmeans(rows, clusters)))


def print_levels() -> None:
    """Print the table of a ranking with seven levels at the size of iNaturalist."""
    print(COLUMNS)
    embeddings, labels = random_items(*INATURALIST)
    rows = torch.from_numpy(embeddings).to(DEVICE)
    sort = measure(lambda: multiply_and_sort(rows), warm_up=False)
    show(f"iNaturalist, {len(rows):,} images: product and sort", sort)
    ranked = measure(lambda: evaluate(rows, labels, **RANKED), warm_up=False)
    show("all ranking metrics, seven levels", ranked, sort)


def print_gallery() -> None:
    """Print what the metrics of nearest neighbors take for a million images of 128 dimensions, in classes of ten."""
    embeddings, labels = draw_gallery(GALLERY)
    rows = torch.from_numpy(embeddings).to(DEVICE)
    settings: dict[str, Any] = {"metrics": ("recall", "map@r", "r_precision"), "clustering": False}
    cost = measure(lambda: evaluate(rows, labels, **settings), warm_up=False)
    parts = "recall@K, MAP@R and R-precision"
    print(f"{GALLERY:,} images: {parts}: {cost.seconds:.0f} s, {cost.mebibytes:,.0f} MiB")


PARTS = ("losses", "evaluation", "levels", "gallery")


def main() -> None:
    """Measure and print the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"parts to measure: {', '.join(PARTS)}; all")
    parser.add_argument("--losses", nargs="+", default=(), metavar="LOSS", help="measure these losses alone")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"{unknown[0]}: not one of {', '.join(PARTS)}")
    if not torch.cuda.is_available():
        sys.exit("error: no CUDA GPU; scripts/bench.py measures the same parts on a CPU")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    work = {
        "losses": lambda: print_losses(options.losses),
        "evaluation": print_evaluation,
        "levels": print_levels,
        "gallery": print_gallery,
    }
    for part in options.parts or PARTS:
        print()
        work[part]()


if __name__ == "__main__":
    main()
