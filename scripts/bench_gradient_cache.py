"""Print the memory and the time of a training step with and without gradient caching.

python scripts/bench_gradient_cache.py    # a minute on two cores

A step is the forward pass of EfficientNet-Lite0 with its heads L, M and H on images of 64 x 64 pixels, Ranked List Loss
of each head, and the backward pass. Each row is measured in a new process. MB are what the step adds to the memory that
the process has with its images and after a small first step. Gradient caching should train 1,024 images in about the
memory of 64.
"""

from dml.run.settings import Settings, read_settings
from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import subprocess
import sys
from time import perf_counter

import torch
from hydra import compose, initialize_config_dir
from process_memory import AddedMemory
from torch import Tensor, nn

from dml.losses.rll import RankedListLoss
from dml.run import builders
from dml.run.config_folders import CONF
from dml.training.gradient_cache import embed_in_chunks

ROWS = ((64, None), (1024, None), (1024, 64))
"""Images in a batch, and images that pass through the network at a time; None for all of them."""
IMAGES_PER_CLASS = 4


def step(model: nn.Module, images: Tensor, size: int | None) -> None:
    """Take a forward pass, compute the losses, and take a backward pass."""
    labels = torch.arange(len(images)) // IMAGES_PER_CLASS
    loss = RankedListLoss()
    embeddings = embed_in_chunks(model, images, size)
    torch.stack([loss(head, labels) for head in embeddings.values()]).sum().backward()  # type: ignore[no-untyped-call]


def measure(batch: int, size: int | None) -> None:
    """Measure one step and print its row."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        model = builders.build_model(read_settings(compose("train", overrides=["transform.size=64"]), Settings))
    images = torch.randint(0, 256, (batch, 3, 64, 64), dtype=torch.uint8)
    step(model, images[: 2 * IMAGES_PER_CLASS], IMAGES_PER_CLASS)
    model.zero_grad()
    with AddedMemory() as added:
        started = perf_counter()
        step(model, images, size)
        seconds = perf_counter() - started
    print(f"{batch:>6}{size or '-':>16}{added.peak:>8.0f}{seconds:>8.1f}{images.nbytes / 2**20:>14.1f}", flush=True)


def main() -> None:
    """Print the table; with arguments, measure and print one row of it."""
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]), int(sys.argv[2]) or None)
        return
    print(f"{'batch':>6}{'gradient_cache':>16}{'MB':>8}{'s':>8}{'MB of images':>14}")
    for batch, size in ROWS:
        subprocess.run([sys.executable, __file__, str(batch), str(size or 0)], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
