"""Print what the options for training and evaluating on a CPU gain: python scripts/bench_cpu.py [NETWORKS]

Each option runs in turns with the plain network, in one process with one thread, on the same random images. "Step" is
a forward and a backward pass with frozen batch normalization; "evaluation" is a forward pass. A number above 1 says
how much faster the option is. Weights are random, except those of the default network. Four minutes on two cores.

- channels last       ``model.backbone.channels_last=true``, against false
- folded              ``model.backbone.fold_batchnorm=true``
- bfloat16            ``trainer.precision=bf16-mixed`` (an evaluation always computes in float32, but
                      `dml.ImageEmbedder.embed` takes ``precision="bf16"``)
- compiled            ``training.compile=true``, if there is a compiler; evaluations never use the compiled network
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import shutil
import sys
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dml.models import networks
from dml.models.backbone import Backbone

ROUNDS = 5


class Case(NamedTuple):
    """A network, its weights, and the images of a step."""

    build: Callable[..., Backbone]
    weights: str | None
    images: int
    size: int


CASES = {
    "tf_efficientnet_lite0, 64 px": Case(networks.timm_backbone, "packaged", 60, 64),
    "tf_efficientnet_lite0, 112 px": Case(networks.timm_backbone, "packaged", 60, 112),
    "bn_inception, 112 px": Case(networks.bn_inception, None, 24, 112),
    "googlenet, 112 px": Case(networks.googlenet, None, 24, 112),
    "resnet50, 112 px": Case(networks.resnet, None, 16, 112),
    "resnet50, 224 px": Case(networks.resnet, None, 8, 224),
}
"""The networks of conf/model that have batch normalization."""


class Work(NamedTuple):
    """One pass of a network over the same images."""

    network: nn.Module
    images: Tensor
    is_training: bool
    precision: torch.dtype | None = None

    def run(self) -> float:
        """Return the seconds of processor time of a step, or of an evaluation."""
        self.network.train(self.is_training)
        started = process_time()
        with torch.set_grad_enabled(self.is_training):
            with torch.autocast("cpu", self.precision, enabled=self.precision is not None):
                features, _ = self.network(self.images)
            if self.is_training:
                features.float().square().mean().backward()
                self.network.zero_grad()
        return process_time() - started


def build(name: str, **settings: Any) -> Backbone:
    """Build the network of a case with the same weights each time."""
    torch.manual_seed(0)
    case, network = CASES[name], name.partition(",")[0]
    names = [network] if case.build in (networks.timm_backbone, networks.resnet) else []
    backbone = case.build(*names, weights=case.weights, freeze_batchnorm="all", **settings)
    backbone.tap({})
    return backbone


def measure_gain(plain: Work, option: Work) -> float:
    """Return how many times as fast an option is, the median of several turns."""
    for work in (plain, option):
        work.run()
    return median(plain.run() / option.run() for _ in range(ROUNDS))


def main() -> None:
    """Measure everything and print a table."""
    torch.set_num_threads(1)
    chosen_networks = sys.argv[1:]
    print(f"{'':<43}{'channels last':>14}{'folded':>9}{'bfloat16':>10}{'compiled':>10}")
    for name, case in CASES.items():
        if chosen_networks and name.partition(",")[0] not in chosen_networks:
            continue
        images = torch.randint(0, 256, (case.images, 3, case.size, case.size)).float()
        for is_training in (True, False):
            plain, folded = build(name), build(name, fold_batchnorm=True)
            pairs = [
                (Work(build(name, channels_last=False), images, is_training), Work(plain, images, is_training)),
                (Work(plain, images, is_training), Work(folded, images, is_training)),
                (Work(plain, images, is_training), Work(plain, images, is_training, torch.bfloat16)),
            ]
            if shutil.which("g++"):
                torch.compiler.reset()  # else a second size makes it compile for any size, which takes half an hour
                compiled: Any = torch.compile(build(name))
                pairs.append((Work(plain, images, is_training), Work(compiled, images, is_training)))
            gains = [f"{measure_gain(*pair):.2f}" for pair in pairs] + ["-"] * (4 - len(pairs))
            label = f"{name}, {'step' if is_training else 'evaluation'}"
            print(f"{label:<43}{gains[0]:>14}{gains[1]:>9}{gains[2]:>10}{gains[3]:>10}", flush=True)


if __name__ == "__main__":
    main()
