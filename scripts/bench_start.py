"""Print what a command takes before it does its work: python scripts/bench_start.py [TIMES]

Each command runs in new processes, in turns with a script that only imports the libraries that it is made of:

- help       ``dml --help``, against an empty script
- train      ``python train.py`` to its first step, without what it computes before that; against torch, Lightning,
             Hydra and timm
- resnet18   ``dml search`` in an index of a torchvision network, against torch
- default    ``dml search`` in an index of the default network, against torch and timm

Seconds are CPU time, of user and system together, and wall time, each the median of TIMES runs (5).
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np
from PIL import Image

from dml.inference import ImageEmbedder, Index
from dml.inference.model_settings import ModelSettings

TRAIN = """
import os
from dml.__main__ import dispatch
from dml.training.module import MetricLearner
MetricLearner.training_step = lambda *_: os._exit(0)
dispatch(["train", *OVERRIDES])
"""
OVERRIDES = [
    "evaluation.raw=false",
    "heads.initial=null",
    "heads.choose=false",
    "checkpoints.beginning=false",
    "trainer.max_steps=2",
    "data.num_workers=0",
    "data.check_images=0",
    "sampler.classes_per_batch=2",
    "sampler.images_per_class=2",
]
"""What a training computes before its first step is off, and the step is small."""

BACKBONES = {
    "resnet18": {"_target_": "dml.models.networks.resnet", "name": "resnet18"},
    "default": {"_target_": "dml.models.networks.timm_backbone", "name": "tf_efficientnet_lite0"},
}
TAPS = {"resnet18": "layer4", "default": "blocks.6"}


class Cost(NamedTuple):
    """Seconds of one process.

    Args:
        cpu: CPU time, of user and system together.
        wall: wall time of the process.
    """

    cpu: float
    wall: float


def build_index(name: str, folder: Path) -> list[str]:
    """Build an index of three images with random weights -> arguments of a search in it."""
    config = {
        "model": {
            "_target_": "dml.models.embedding.EmbeddingModel",
            "backbone": BACKBONES[name],
            "taps": {"H": TAPS[name]},
            "head": {"H": {"_target_": "dml.models.heads.PoolHead", "_partial_": True}},
            "heads": ["H"],
            "embed_dim": 8,
            "image_size": 64,
        },
        "transform": {"test": {"_target_": "dml.data.transforms.Resize", "mode": "warp", "size": 64}},
        "data": {"eval_batch_size": 4},
        "dataset": {"name": "noise"},
    }
    settings = ModelSettings(config=config, name=name)
    images = folder / name
    images.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{number}.png")
    Index.build(ImageEmbedder(settings.build_model(), settings), images).save(folder / f"{name}_index")
    return ["-m", "dml", "search", str(folder / f"{name}_index"), str(images / "0.png")]


def measure(arguments: Sequence[str]) -> Cost:
    """Run a Python process to its end."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    command = [sys.executable, *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)  # noqa: S603 (commands of dml)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended - started)


def print_row(name: str, commands: Mapping[str, Sequence[str]], times: int) -> None:
    """Measure a command and what it is compared with in turns, and print a line."""
    costs: dict[str, list[Cost]] = {kind: [] for kind in commands}
    for _ in range(times):
        for kind, arguments in commands.items():
            costs[kind].append(measure(arguments))
    cpu, floor = (median(cost.cpu for cost in costs[kind]) for kind in ("command", "libraries"))
    wall = median(cost.wall for cost in costs["command"])
    print(f"{name:<10}{cpu:8.2f}{wall:8.2f}{floor:12.2f}{cpu / floor:8.2f}", flush=True)


def main() -> None:
    """Print a table with a line for each command."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"{'command':<10}{'CPU s':>8}{'wall s':>8}{'libraries s':>12}{'ratio':>8}")
    with TemporaryDirectory() as name:
        folder = Path(name)
        train = f"OVERRIDES = {[*OVERRIDES, f'hydra.run.dir={folder}/run']}\n{TRAIN}"
        print_row("help", {"command": ["-m", "dml", "--help"], "libraries": ["-c", ""]}, times)
        libraries = "import torch, pytorch_lightning, hydra, timm"
        print_row("train", {"command": ["-c", train], "libraries": ["-c", libraries]}, times)
        for backbone, imports in (("resnet18", "import torch"), ("default", "import torch, timm")):
            search = build_index(backbone, folder)
            print_row(backbone, {"command": search, "libraries": ["-c", imports]}, times)


if __name__ == "__main__":
    main()
