"""Print what the framework adds to a bare PyTorch loop, and how long a step waits for its images.

python scripts/bench_training.py [OVERRIDES]    # a minute on two cores; overrides as for train.py

Both loops do the same steps on the same tensors in one process, in turns, so that a change of the machine's speed
affects both.
"""

import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from pytorch_lightning import Callback
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dml.data.dataset import Batch
from dml.run import builders, loop
from dml.run.config_folders import CONF
from dml.run.settings import Settings, read_settings
from dml.run.stored import Stage
from dml.runtime.imports import quiet
from dml.training.callbacks.process_state import StepSeed
from dml.training.callbacks.progress import Progress
from dml.training.loggers import History
from dml.training.module import MetricLearner

ROUNDS, STEPS, WARM_UP = 8, 12, 3


class Clock(Callback):
    """Records when each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        """Record the time."""
        self.ends.append(perf_counter())


def median_step(ends: list[float]) -> float:
    """Return the median seconds of a step, without the first `WARM_UP` steps."""
    return median(after - before for before, after in zip(ends[WARM_UP:-1], ends[WARM_UP + 1 :], strict=True))


def time_framework(config: DictConfig, learner: MetricLearner, batches: list[Batch]) -> float:
    """Return the seconds of a step in Lightning's loop with its logger and progress bar."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = loop.build_trainer(
            read_settings(config, Settings),
            logger=[History(Path(folder) / "metrics.csv")],
            callbacks=[StepSeed(config.seed), Progress(), clock],
            enable_checkpointing=False,
        )
        repeated: Any = [*islice(cycle(batches), STEPS + 1)]
        trainer.fit(learner, DataLoader(repeated, batch_size=None, collate_fn=tuple))
    return median_step(clock.ends)


def time_bare_loop(learner: MetricLearner, optimizer: Optimizer, batches: list[Batch]) -> float:
    """Return the seconds of a step in the loop that one would write by hand."""
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
    return median_step(ends)


def main() -> None:
    """Measure and print both timings."""
    quiet()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        overrides = ["trainer.val_check_interval=null", *sys.argv[1:], f"trainer.max_steps={STEPS}"]
        config = compose("train", overrides=overrides)
    settings = read_settings(config, Settings)
    images = loop.build_data(settings, builders.build_table(settings))
    loop.count_in_steps(Stage("", config), len(images.sampler))
    settings = read_settings(config, Settings)
    torch.manual_seed(config.seed)
    learner = loop.build_learner(settings, images, builders.build_model(settings))

    started = perf_counter()
    batches = [*islice(images.train_dataloader(), 30)]
    loading = (perf_counter() - started) / len(batches)

    configured: Any = learner.configure_optimizers()
    optimizer = configured["optimizer"] if isinstance(configured, dict) else configured
    pairs = [
        (time_framework(config, learner, batches), time_bare_loop(learner, optimizer, batches)) for _ in range(ROUNDS)
    ]
    step, by_hand, ratio = (median(values) for values in zip(*((a, b, a / b) for a, b in pairs), strict=True))
    count = len(batches[0][0])
    print(f"training step, {count} images: {1000 * step:.0f} ms, by hand {1000 * by_hand:.0f} ms, ratio {ratio:.3f}")
    print(f"loading alone: {1000 * loading:.0f} ms a batch with {images.settings.num_workers} worker(s)")


if __name__ == "__main__":
    main()
