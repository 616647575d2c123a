"""open-metric-learning: its data sets, extractors, inference and retrieval metrics, with the loop of its README.

Its Lightning pipelines pin pytorch-lightning below 2.1.3, so the README's loop in plain PyTorch is measured.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch.nn.functional as F
from oml.datasets import ImageLabeledDataset, ImageQueryGalleryLabeledDataset
from oml.inference import inference
from oml.interfaces.models import IExtractor
from oml.metrics import calc_retrieval_metrics_rr
from oml.retrieval import RetrievalResults
from torch import Tensor
from torch.utils.data import DataLoader

from peers import parts
from peers.protocol import EVAL_BATCH_SIZE, Job, Results


class Extractor(IExtractor):  # type: ignore[misc]
    """The network as an extractor of the library, which L2-normalizes its features like the library's own."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.network = parts.Network(job)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images (B, 3, H, W) -> (B, D), L2-normalized."""
        return F.normalize(self.network(images), dim=1)


def list_images(job: Job, split: str) -> Any:
    """Return the library's data set of a split; each image of a test is a query, and in the gallery."""
    paths, labels = parts.read_rows(job.folder, split)
    table = pd.DataFrame({"path": paths, "label": labels, "split": split, "is_query": True, "is_gallery": True})
    kind = ImageLabeledDataset if split == "train" else ImageQueryGalleryLabeledDataset
    return kind(table, transform=parts.build_transform(job.size, is_training=split == "train"))


def train(job: Job, extractor: Extractor, after_step: Callable[[int], bool]) -> None:
    """Train as the library's README."""
    batches = DataLoader(list_images(job, "train"), batch_sampler=parts.ExportedBatches(job), num_workers=job.workers)
    criterion = parts.MinedLoss()
    optimizer = parts.build_optimizer(extractor, criterion)
    extractor.train()
    for step, batch in enumerate(batches, start=1):
        embeddings = extractor(batch["input_tensors"])
        loss = criterion(embeddings, batch["labels"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step(step)


def compute_metrics(embeddings: Tensor, images: Any) -> Results:
    """Compute the library's CMC@1, which is recall@1, and its MAP@5."""
    results = RetrievalResults.from_embeddings(embeddings, images, n_items=10)
    metrics = calc_retrieval_metrics_rr(results, cmc_top_k=(1,), map_top_k=(5,), precision_top_k=(), verbose=False)
    return {"recall@1": float(metrics["cmc"][1]), "map@5": float(metrics["map"][5])}


def evaluate(job: Job, extractor: Extractor, split: str) -> Results:
    """Embed and evaluate a split."""
    images = list_images(job, split)
    return compute_metrics(inference(extractor, images, batch_size=EVAL_BATCH_SIZE, num_workers=job.workers), images)


def rank(job: Job) -> Callable[[Tensor, Tensor], Results]:
    """Return the library's metrics of embeddings of the test split, whose labels it has."""
    images = list_images(job, "test")
    return lambda embeddings, _: {"recall@1": compute_metrics(embeddings, images)["recall@1"]}


if __name__ == "__main__":
    parts.Library(Extractor, train, evaluate, rank).run()
