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
    *("evaluation.raw=false", "heads.initial=null", "heads.choose=false", "checkpoints.beginning=false"),
    *("trainer.max_steps=2", "data.num_workers=0", "data.check_images=0"),
    *("sampler.classes_per_batch=2", "sampler.images_per_class=2"),
]
"""What a training computes before its first step is off, and the step is small."""

BACKBONES = {
    "resnet18": ("dml.models.networks.resnet", "resnet18", "layer4"),
    "default": ("dml.models.networks.timm_backbone", "tf_efficientnet_lite0", "blocks.6"),
}


def build_index(name: str, folder: Path) -> list[str]:
    """Build an index of three images with random weights -> arguments of a search in it."""
    target, network, tap = BACKBONES[name]
    config = {
        "model": {
            "_target_": "dml.models.embedding.EmbeddingModel",
            "backbone": {"_target_": target, "name": network},
            "taps": {"H": tap},
            "head": {"H": {"_target_": "dml.models.heads.PoolHead", "_partial_": True}},
            "heads": ["H"],
            "embed_dim": 8,
            "image_size": 64,
        },
        "transform": {"test": {"_target_": "dml.data.transforms.Resize", "mode": "warp", "size": 64}},
        "data": {"eval_batch_size": 4},
        "dataset": {"name": "noise"},
    }
    settings, images = ModelSettings(config=config, name=name), folder / name
    images.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{number}.png")
    Index.build(ImageEmbedder(settings.build_model(), settings), images).save(folder / f"{name}_index")
    return ["-m", "dml", "search", str(folder / f"{name}_index"), str(images / "0.png")]


def measure(arguments: Sequence[str]) -> tuple[float, float]:
    """Run a Python process to its end -> seconds of CPU time, of user and system together, and of wall time."""
    before, started = os.times(), perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)  # noqa: S603
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4]), perf_counter() - started


def print_row(name: str, command: Sequence[str], imports: str, times: int) -> None:
    """Measure a command and its imports in turns, and print a line."""
    turns = [(measure(command), measure(["-c", imports])) for _ in range(times)]
    cpu, wall, floor = (median(values) for values in zip(*((*own, floor) for own, (floor, _) in turns), strict=True))
    print(f"{name:<10}{cpu:8.2f}{wall:8.2f}{floor:12.2f}{cpu / floor:8.2f}", flush=True)


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
