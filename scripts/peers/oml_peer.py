"""open-metric-learning: its data sets, extractors, inference and retrieval metrics, with the loop of its README.

Its Lightning pipelines pin pytorch-lightning below 2.1.3, so the README's loop in plain PyTorch is measured.
"""

from time import perf_counter
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from oml.datasets import ImageLabeledDataset, ImageQueryGalleryLabeledDataset
from oml.inference import inference
from oml.interfaces.models import IExtractor
from oml.metrics import calc_retrieval_metrics_rr
from oml.retrieval import RetrievalResults
from torch import Tensor
from torch.utils.data import DataLoader

from peers import parts
from peers.protocol import EVAL_BATCH_SIZE, Job, RecallClock, Results, StepClock, run_job


class Extractor(IExtractor):  # type: ignore[misc]
    """The network as an extractor of the library, which L2-normalizes its features like the library's own."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.network = parts.Network(job)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images (B, 3, H, W) -> (B, D), L2-normalized."""
        return F.normalize(self.network(images), dim=1)


def list_images(job: Job, split: str) -> Any:
    """Return the library's table of a split; each image of a test is a query, and in the gallery."""
    paths, labels = parts.read_rows(job.folder, split)
    return pd.DataFrame({"path": paths, "label": labels, "split": split, "is_query": True, "is_gallery": True})


def make_evaluated_images(job: Job, split: str) -> Any:
    """Make the library's data set of the images of a validation or a test."""
    transform = parts.build_transform(job.size, is_training=False)
    return ImageQueryGalleryLabeledDataset(list_images(job, split), transform=transform)


def make_batches(job: Job) -> Any:
    """Return the training batches of the library's data set."""
    images = ImageLabeledDataset(list_images(job, "train"), transform=parts.build_transform(job.size, is_training=True))
    return DataLoader(images, batch_sampler=parts.GivenBatches(parts.read_batches(job)), num_workers=job.workers)


def train_network(job: Job, extractor: Extractor, after_step: Any) -> None:
    """Train as the library's README; a function is called after each step, and ends the training by True."""
    criterion = parts.MinedLoss()
    optimizer = parts.build_optimizer(extractor, criterion)
    extractor.train()
    for step, batch in enumerate(make_batches(job), start=1):
        embeddings = extractor(batch["input_tensors"])
        loss = criterion(embeddings, batch["labels"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if after_step(step):
            break


def compute_metrics(embeddings: Tensor, images: Any) -> Results:
    """Compute the library's CMC@1, which is recall@1, and its MAP@5."""
    results = RetrievalResults.from_embeddings(embeddings, images, n_items=10)
    metrics = calc_retrieval_metrics_rr(results, cmc_top_k=(1,), map_top_k=(5,), precision_top_k=(), verbose=False)
    return {"recall@1": float(metrics["cmc"][1]), "map@5": float(metrics["map"][5])}


def evaluate_split(job: Job, extractor: Extractor, images: Any) -> Results:
    """Embed and evaluate the images of a validation or a test."""
    embeddings = inference(extractor, images, batch_size=EVAL_BATCH_SIZE, num_workers=job.workers)
    return compute_metrics(embeddings, images)


def train(job: Job) -> Results:
    """Measure the training steps."""
    extractor, clock = Extractor(job), StepClock(job)
    weights = parts.sum_weights(extractor)
    train_network(job, extractor, lambda _: clock.add_step())
    return {**clock.summarize(), "weights": weights}


def train_to_recall(job: Job) -> Results:
    """Train until a validation finds the target."""
    extractor, clock, images = Extractor(job), RecallClock(job), make_evaluated_images(job, "val")

    def validate(step: int) -> bool:
        return step % job.every == 0 and clock.add_validation(step, evaluate_split(job, extractor, images)["recall@1"])

    train_network(job, extractor, validate)
    return clock.summarize()


def evaluate(job: Job) -> Results:
    """Measure an evaluation of the test split."""
    extractor = Extractor(job)
    started = perf_counter()
    images = make_evaluated_images(job, "test")
    metrics = evaluate_split(job, extractor, images)
    seconds = perf_counter() - started
    embeddings, _ = parts.read_given_embeddings(job.folder)
    given_started = perf_counter()
    given_metrics = compute_metrics(torch.nn.functional.normalize(embeddings), images)
    metrics_seconds = perf_counter() - given_started
    return {
        **metrics,
        "given_recall@1": given_metrics["recall@1"],
        "evaluation_s": seconds,
        "metrics_s": metrics_seconds,
    }


if __name__ == "__main__":
    run_job({"train": train, "evaluate": evaluate, "recall": train_to_recall})
