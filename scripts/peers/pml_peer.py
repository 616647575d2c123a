"""pytorch-metric-learning: its trainer `MetricLossOnly`, its tester and its `AccuracyCalculator`."""

from time import perf_counter
from typing import Any

import torch
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester  # type: ignore[import-untyped]
from pytorch_metric_learning.trainers import MetricLossOnly  # type: ignore[import-untyped]
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator  # type: ignore[import-untyped]

from peers import parts
from peers.protocol import BATCH_SIZE, EVAL_BATCH_SIZE, Job, RecallClock, Results, StepClock, end_process, run_job

RECALL, MAP = "precision_at_1", "mean_average_precision_at_r"


def make_calculator() -> Any:
    """Make the library's metrics; `k` is the number of neighbors that MAP@R needs, not all images."""
    return AccuracyCalculator(include=(RECALL, MAP), k="max_bin_count")


def make_tester(job: Job) -> Any:
    """Make the library's tester."""
    return GlobalEmbeddingSpaceTester(
        batch_size=EVAL_BATCH_SIZE, dataloader_num_workers=job.workers, accuracy_calculator=make_calculator()
    )


def evaluate_split(tester: Any, job: Job, split: str, network: parts.Network) -> Results:
    """Embed and evaluate a split."""
    accuracies = tester.test({split: parts.ListedImages(job, split)}, 0, network.trunk, network.head)[split]
    return {"recall@1": accuracies[f"{RECALL}_level0"], "map@r": accuracies[f"{MAP}_level0"]}


def train_network(job: Job, network: parts.Network, after_step: Any) -> None:
    """Train the network; a function is called with the trainer after each step."""
    loss, miner = parts.build_loss()
    optimizers = {"trunk_optimizer": network.trunk, "embedder_optimizer": network.head}
    MetricLossOnly(
        models={"trunk": network.trunk, "embedder": network.head},
        optimizers={name: parts.build_optimizer(module) for name, module in optimizers.items()},
        batch_size=BATCH_SIZE,
        loss_funcs={"metric_loss": loss},
        mining_funcs={"tuple_miner": miner},
        dataset=parts.ListedImages(job, "train"),
        sampler=parts.GivenBatches(parts.read_batches(job)),
        iterations_per_epoch=job.steps,
        dataloader_num_workers=job.workers,
        end_of_iteration_hook=after_step,
    ).train(num_epochs=1)


def train(job: Job) -> Results:
    """Measure the training steps."""
    network, clock = parts.Network(job), StepClock(job)
    weights = parts.sum_weights(network)
    train_network(job, network, lambda _: clock.add_step())
    return {**clock.summarize(), "weights": weights}


def train_to_recall(job: Job) -> Results:
    """Train until a validation finds the target."""
    network, clock, tester = parts.Network(job), RecallClock(job), make_tester(job)

    def validate(trainer: Any) -> None:
        step = trainer.iteration + 1
        if step % job.every == 0:
            recall = evaluate_split(tester, job, "val", network)["recall@1"]
            if clock.add_validation(step, recall):
                end_process(job, clock.summarize())
            trainer.set_to_train()

    train_network(job, network, validate)
    return clock.summarize()


def evaluate(job: Job) -> Results:
    """Measure an evaluation of the test split."""
    network = parts.Network(job)
    started = perf_counter()
    metrics = evaluate_split(make_tester(job), job, "test", network)
    seconds = perf_counter() - started
    embeddings, labels = parts.read_given_embeddings(job.folder)
    given_started = perf_counter()
    accuracies = make_calculator().get_accuracy(torch.nn.functional.normalize(embeddings), labels)
    metrics_seconds = perf_counter() - given_started
    given_metrics = {"given_recall@1": accuracies[RECALL], "given_map@r": accuracies[MAP]}
    return {**metrics, **given_metrics, "evaluation_s": seconds, "metrics_s": metrics_seconds}


if __name__ == "__main__":
    run_job({"train": train, "evaluate": evaluate, "recall": train_to_recall})
