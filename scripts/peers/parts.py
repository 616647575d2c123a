"""What the peers' own environments share: images, network, loss, optimizer, and what is measured of a library."""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import timm
import torch
import torchvision
from PIL import Image
from pytorch_metric_learning import losses, miners  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.utils.data import BatchSampler, Dataset
from torchvision.transforms import v2

from peers.protocol import (
    EMBED_DIM,
    LEARNING_RATE,
    NETWORK,
    WEIGHT_DECAY,
    Job,
    RecallClock,
    Results,
    StepClock,
    run_job,
)

Item = tuple[Tensor, int]


def read_rows(folder: str, split: str) -> tuple[list[str], list[int]]:
    """Return the paths and the labels of the images of a split, in the order of the exported file."""
    with Path(folder, "images.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    return [row["path"] for row in rows], [int(row["label"]) for row in rows]


class ExportedBatches(BatchSampler):
    """Yields the batches of rows in the training split that the driver drew, those that dml trains on."""

    def __init__(self, job: Job) -> None:
        batches: list[list[int]] = json.loads(Path(job.folder, "batches.json").read_text(encoding="utf-8"))
        self.batches = batches[: job.steps]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def build_transform(size: int, *, is_training: bool) -> Any:
    """Build the transform of a PIL image: scaled to a square, mirrored at random in training, and normalized."""
    config: Any = timm.get_pretrained_cfg(NETWORK)
    return torchvision.transforms.Compose(
        [
            v2.Resize((size, size)),
            *([v2.RandomHorizontalFlip()] if is_training else []),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(config.mean, config.std),
        ]
    )


class ListedImages(Dataset[Item]):
    """The images of a split, decoded by Pillow."""

    def __init__(self, job: Job, split: str) -> None:
        self.paths, self.labels = read_rows(job.folder, split)
        self.transform = build_transform(job.size, is_training=split == "train")

    def __getitem__(self, row: int) -> Item:
        with Image.open(self.paths[row]) as image:
            return self.transform(image.convert("RGB")), self.labels[row]

    def __len__(self) -> int:
        return len(self.paths)


class Network(nn.Module):
    """The network that all train: timm's without its classifier, and a linear layer, with the exported weights."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        torch.manual_seed(0)
        torch.set_num_threads(job.threads)
        trunk: Any = timm.create_model(NETWORK, num_classes=0)
        self.trunk = trunk
        self.head = nn.Linear(trunk.num_features, EMBED_DIM, bias=False)
        self.load_state_dict(torch.load(Path(job.folder, "network.pt"), weights_only=True))
        self.to(memory_format=torch.channels_last if job.channels_last else torch.contiguous_format)

    def forward(self, images: Tensor) -> Tensor:
        """Embed normalized images (B, 3, H, W) -> (B, D)."""
        embeddings: Tensor = self.head(self.trunk(images))
        return embeddings


def build_loss() -> tuple[nn.Module, nn.Module]:
    """Build the loss of pytorch-metric-learning, as in conf/loss/multi_similarity.yaml, and its miner."""
    return losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5), miners.MultiSimilarityMiner(epsilon=0.1)


class MinedLoss(nn.Module):
    """The loss with its miner as one module of embeddings (B, D) and labels (B,)."""

    def __init__(self) -> None:
        super().__init__()
        self.loss, self.miner = build_loss()

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss -> scalar."""
        value: Tensor = self.loss(embeddings, labels, self.miner(embeddings, labels))
        return value


def build_optimizer(*modules: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of all parameters of some modules."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


@dataclass(frozen=True)
class Library:
    """How a library does what is measured."""

    build: Callable[[Job], Any]  # -> the model
    train: Callable[[Job, Any, Callable[[int], bool]], None]  # calls a function after each step: has it evaluated?
    evaluate: Callable[[Job, Any, str], Results]  # embeds and ranks a split
    rank: Callable[[Job], Callable[[Tensor, Tensor], Results]]  # the metrics of normalized embeddings (N, D), labels

    def run(self) -> None:
        """Run the job that the command line names."""
        run_job({"train": self.time_steps, "recall": self.train_to_recall, "evaluate": self.time_evaluation})

    def time_steps(self, job: Job) -> Results:
        """Measure the training steps; the sum of the weights tells whether all peers begin with the same."""
        model, clock = self.build(job), StepClock(job)
        weights = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())

        def count_step(_: int) -> bool:
            clock.add_step()
            return False

        self.train(job, model, count_step)
        return {**clock.summarize(), "weights": weights}

    def train_to_recall(self, job: Job) -> Results:
        """Train until a validation finds the target."""
        model, clock = self.build(job), RecallClock(job)

        def validate(step: int) -> bool:
            is_due = step % job.interval == 0
            if is_due and clock.add_validation(step, self.evaluate(job, model, "val")["recall@1"]):
                job.end_process(clock.summarize())
            return is_due

        self.train(job, model, validate)
        return clock.summarize()

    def time_evaluation(self, job: Job) -> Results:
        """Measure an evaluation of the test split, and of the embeddings on which the metrics of all are compared."""
        model, stored, rank = self.build(job), np.load(Path(job.folder, "embeddings.npz")), self.rank(job)
        embeddings, labels = torch.from_numpy(stored["embeddings"]), torch.from_numpy(stored["labels"])
        started = perf_counter()
        metrics = self.evaluate(job, model, "test")
        evaluated = perf_counter()
        exported = rank(nn.functional.normalize(embeddings), labels)
        seconds = {"evaluation_s": evaluated - started, "metrics_s": perf_counter() - evaluated}
        return {**metrics, **{f"exported_{name}": value for name, value in exported.items()}, **seconds}
