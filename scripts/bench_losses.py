"""Print the time of each loss forward and backward, beside a yardstick, and the memory that a step adds.

python scripts/bench_losses.py           # all of conf/loss in some minutes on two cores
python scripts/bench_losses.py rll nra   # some of them

A batch has 1,024 float32 embeddings of 512 dimensions, in classes of 4 images and super-classes of 32 classes, like
HAPPIER's batches on SOP; that of `SMALL` losses has 256. A loss and its yardstick are measured in turns, in a process
of their own. The printed ratio is the median over the turns. B^2 is the most that tensors take at a time, beside the
batch, in numbers of each pair: what torch's allocator holds, with the gradients.
"""

import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from dml.run.builders import build_losses
from dml.run.config_folders import CONF
from dml.run.settings import Settings, read_settings

SIZE, CLASS, SUPER_CLASS, TURNS = 512, 4, 32, 5
SMALL = ("lifted", "margin", "pnp", "snr_contrastive", "threshold_consistent_margin", "triplet", "triplet_n_pair")
"""Losses of which pytorch-metric-learning lists all triplets, or more."""
LIMITS = {"nra": 2.0, "tuplet": 2.0, "recall_at_k": 4.0}
"""The largest ratio of the time of a loss to the yardstick's that is allowed."""


def reduce_similarities(embeddings: Tensor, _: Tensor) -> Tensor:
    """Do the least that a loss of all pairs does. (B, D) -> scalar."""
    return (embeddings @ embeddings.T).logsumexp(dim=1).mean()


def build_loss(name: str, labels: Tensor) -> nn.Module:
    """Build a loss by its YAML, with the classes of a batch."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=[f"loss={name}"])
    return build_losses(read_settings(config, Settings), {"H": SIZE}, labels.numpy())["H"]


def time_step(loss: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, labels: Tensor) -> float:
    """Return the milliseconds of one forward and backward pass."""
    leaf = embeddings.detach().requires_grad_()
    started = perf_counter()
    value: Any = loss(leaf, labels)
    value.backward()
    return 1000 * (perf_counter() - started)


def measure_peak(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> int:
    """Return the most bytes that the tensors of a second step take at a time."""
    time_step(loss, embeddings, labels)  # loads kernels
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        time_step(loss, embeddings, labels)
    with TemporaryDirectory() as folder:
        profiler.export_chrome_trace(trace := f"{folder}/trace.json")
        events = json.loads(Path(trace).read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    return max(accumulate(int(size) for _, size in changes))


def describe_loss(name: str) -> str:
    """Measure a loss -> its row of the table."""
    batch = 256 if name in SMALL else 1024
    embeddings = torch.randn(batch, SIZE, generator=torch.Generator().manual_seed(0))
    fine = torch.arange(batch) // CLASS
    labels = torch.stack([fine, fine // SUPER_CLASS], dim=1)
    loss = build_loss(name, labels)
    peak = measure_peak(loss, embeddings, labels)
    turns = [[time_step(work, embeddings, labels) for work in (loss, reduce_similarities)] for _ in range(TURNS)]
    ratio, pairs = median(first / second for first, second in turns), peak / (4 * batch**2)
    taken = f"{median(first for first, _ in turns):>9.1f}{ratio:>8.1f}{LIMITS.get(name, ''):>7}"
    return f"{name:<28}{batch:>6}{taken}{peak / 2**20:>7.0f}{pairs:>7.1f}"


def main(names: Sequence[str]) -> None:
    """Measure and print the losses."""
    print(f"{torch.get_num_threads()} threads; the yardstick is logsumexp(E E^T)")
    print(f"{'loss':<28}{'batch':>6}{'ms':>9}{'ratio':>8}{'limit':>7}{'MiB':>7}{'B^2':>7}")
    names = names or sorted(path.stem for path in (CONF / "loss").glob("*.yaml"))
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for line in pool.imap(describe_loss, names, chunksize=1):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
