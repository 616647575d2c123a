"""pytorch-metric-learning: its trainer `MetricLossOnly`, its tester and its `AccuracyCalculator`."""

from collections.abc import Callable
from typing import Any

from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester  # type: ignore[import-untyped]
from pytorch_metric_learning.trainers import MetricLossOnly  # type: ignore[import-untyped]
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator  # type: ignore[import-untyped]
from torch import Tensor

from peers import parts
from peers.protocol import BATCH_SIZE, EVAL_BATCH_SIZE, Job, Results

NAMES = {"recall@1": "precision_at_1", "map@r": "mean_average_precision_at_r"}


def make_calculator() -> Any:
    """Make the library's metrics; `k` is the number of neighbors that MAP@R needs, not all images."""
    return AccuracyCalculator(include=tuple(NAMES.values()), k="max_bin_count")


def evaluate(job: Job, network: parts.Network, split: str) -> Results:
    """Embed and evaluate a split by the library's tester."""
    tester = GlobalEmbeddingSpaceTester(
        batch_size=EVAL_BATCH_SIZE, dataloader_num_workers=job.workers, accuracy_calculator=make_calculator()
    )
    accuracies = tester.test({split: parts.ListedImages(job, split)}, 0, network.trunk, network.head)[split]
    return {name: accuracies[f"{library_name}_level0"] for name, library_name in NAMES.items()}


def rank(_: Job) -> Callable[[Tensor, Tensor], Results]:
    """Return the library's metrics of embeddings and labels."""

    def compute(embeddings: Tensor, labels: Tensor) -> Results:
        accuracies = make_calculator().get_accuracy(embeddings, labels)
        return {name: accuracies[library_name] for name, library_name in NAMES.items()}

    return compute


def train(job: Job, network: parts.Network, after_step: Callable[[int], bool]) -> None:
    """Train the network."""
    loss, miner = parts.build_loss()
    optimizers = {"trunk_optimizer": network.trunk, "embedder_optimizer": network.head}

    def hook(trainer: Any) -> None:
        if after_step(trainer.iteration + 1):
            trainer.set_to_train()

    MetricLossOnly(
        models={"trunk": network.trunk, "embedder": network.head},
        optimizers={name: parts.build_optimizer(module) for name, module in optimizers.items()},
        batch_size=BATCH_SIZE,
        loss_funcs={"metric_loss": loss},
        mining_funcs={"tuple_miner": miner},
        dataset=parts.ListedImages(job, "train"),
        sampler=parts.ExportedBatches(job),
        iterations_per_epoch=job.steps,
        dataloader_num_workers=job.workers,
        end_of_iteration_hook=hook,
    ).train(num_epochs=1)


if __name__ == "__main__":
    parts.Library(parts.Network, train, evaluate, rank).run()
