"""Print what a command takes before it does its work: python scripts/bench_start.py [TIMES]

Each command runs in new processes, in turns with a script that only imports the libraries that it is made of:

- help       ``dml --help``, against an empty script
- train      ``python train.py`` to its first step, without what it computes before that; against torch, Lightning,
             Hydra and timm
- resnet18   ``dml search`` in an index of a torchvision network, against torch
- default    ``dml search`` in an index of the default network, against torch and timm

Seconds are CPU time, of user and system together, and wall time, each the median of TIMES runs (5).
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from bench_embedding import make_model
from photographs import write_photographs

from dml.inference import Index

TRAIN = """
import os
from dml.__main__ import dispatch
from dml.training.module import MetricLearner
MetricLearner.training_step = lambda *_: os._exit(0)
dispatch(["train", *OVERRIDES])
"""
OVERRIDES = [
    *("evaluation.raw=false", "heads.initial=null", "heads.choose=false", "checkpoints.beginning=false"),
    *("trainer.max_steps=2", "data.num_workers=0", "data.check_images=0"),
    *("sampler.classes_per_batch=2", "sampler.images_per_class=2"),
]
"""What a training computes before its first step is off, and the step is small."""

NETWORKS = {"resnet18": ["model=resnet18"], "default": []}
"""Overrides that choose the network of each search."""


def build_index(name: str, folder: Path) -> list[str]:
    """Build an index of three images with random weights -> arguments of a search in it."""
    images = folder / name
    write_photographs([images / f"{number}.jpg" for number in range(3)])
    Index.build(make_model("transform.size=64", *NETWORKS[name]), images).save(folder / f"{name}_index")
    return ["-m", "dml", "search", str(folder / f"{name}_index"), str(images / "0.jpg")]


def measure(arguments: Sequence[str]) -> tuple[float, float]:
    """Run a Python process to its end -> seconds of CPU time, of user and system together, and of wall time."""
    before, started = os.times(), perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)  # noqa: S603
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4]), perf_counter() - started


def print_row(name: str, command: Sequence[str], imports: str, times: int) -> None:
    """Measure a command and its imports in turns, and print a line."""
    turns = [(*measure(command), measure(["-c", imports])[0]) for _ in range(times)]
    cpu, wall, libraries = (median(values) for values in zip(*turns, strict=True))
    print(f"{name:<10}{cpu:8.2f}{wall:8.2f}{libraries:12.2f}{cpu / libraries:8.2f}", flush=True)


def main() -> None:
    """Print a table with a line for each command."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"{'command':<10}{'CPU s':>8}{'wall s':>8}{'libraries s':>12}{'ratio':>8}")
    with TemporaryDirectory() as folder:
        train = f"OVERRIDES = {[*OVERRIDES, f'hydra.run.dir={folder}/run']}\n{TRAIN}"
        print_row("help", ["-m", "dml", "--help"], "", times)
        print_row("train", ["-c", train], "import torch, pytorch_lightning, hydra, timm", times)
        for name, imports in (("resnet18", "import torch"), ("default", "import torch, timm")):
            print_row(name, build_index(name, Path(folder)), imports, times)


if __name__ == "__main__":
    main()
