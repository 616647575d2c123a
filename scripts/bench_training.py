"""Prints what the framework adds to a bare PyTorch loop, and how long a step waits for its images.

python scripts/bench_training.py [OVERRIDES]    # four minutes on two cores; overrides as for train.py

Both loops do the same steps on the same tensors in one process, in turns, so that a change of the machine's
speed meets both.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from pytorch_lightning import Callback
from torch.optim import Optimizer

from dml.data.dataset import Batch
from dml.run import build, length, loop
from dml.run.config_folders import CONF
from dml.run.quiet import quiet
from dml.training.history import History
from dml.training.module import MetricLearner
from dml.training.progress import Progress
from dml.training.seeding import StepSeed

ROUNDS, STEPS, WARM_UP = 8, 12, 3


class SameBatches:
    """Hands out prepared batches for ever."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return 2**60

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield from self.batches


class Clock(Callback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        """Notes the time."""
        self.ends.append(perf_counter())


def seconds_a_step(ends: list[float]) -> float:
    """The median step, the first ones left out."""
    return median(after - before for before, after in zip(ends[WARM_UP:-1], ends[WARM_UP + 1 :], strict=True))


def framework(config: DictConfig, learner: MetricLearner, batches: list[Batch]) -> float:
    """Seconds a step of the Lightning loop with its logger and progress bar."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = loop.trainer(
            config,
            logger=[History(Path(folder) / "metrics.csv")],
            callbacks=[StepSeed(config.seed), Progress(), clock],
            enable_checkpointing=False,
        )
        trainer.fit(learner, SameBatches(batches))
    return seconds_a_step(clock.ends)


def bare(learner: MetricLearner, optimizer: Optimizer, batches: list[Batch]) -> float:
    """Seconds a step of the loop that one would write by hand."""
    ends = []
    model, losses = learner.model.train(), learner.losses
    for step in range(STEPS):
        images, labels, _ = batches[step % len(batches)]
        embeddings = model(images)
        loss = sum(losses[head](rows, labels) for head, rows in embeddings.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ends.append(perf_counter())
    return seconds_a_step(ends)


def in_turns(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float, float]:
    """Medians of both over the rounds, and the median of their ratios."""
    pairs = [(first(), second()) for _ in range(ROUNDS)]
    return median(a for a, _ in pairs), median(b for _, b in pairs), median(a / b for a, b in pairs)


def main() -> None:
    """Prints both figures."""
    quiet()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(
            "train", overrides=["trainer.val_check_interval=null", *sys.argv[1:], f"trainer.max_steps={STEPS}"]
        )
    images = build.data(config, build.table(config))
    length.count_in_steps(config, len(images.sampler))
    torch.manual_seed(config.seed)
    learner = build.learner(config, images, build.model(config))

    stream = images.train_dataloader()
    started, batches = perf_counter(), []
    for batch in stream:
        batches.append(batch)
        if len(batches) == 30:
            break
    loading = (perf_counter() - started) / len(batches)

    configured: Any = learner.configure_optimizers()
    optimizer = configured["optimizer"] if isinstance(configured, dict) else configured
    step, by_hand, ratio = in_turns(
        lambda: framework(config, learner, batches), lambda: bare(learner, optimizer, batches)
    )
    count = len(batches[0][0])
    print(f"training step, {count} images: {1000 * step:.0f} ms, by hand {1000 * by_hand:.0f} ms, ratio {ratio:.3f}")
    print(f"loading alone: {1000 * loading:.0f} ms a batch with {config.data.num_workers} worker(s)")


if __name__ == "__main__":
    main()
