"""What the peers' own environments share: the images of the exported data set, the network, the loss, the optimizer."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
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

from peers.protocol import EMBED_DIM, LEARNING_RATE, NETWORK, WEIGHT_DECAY, Job

Item = tuple[Tensor, int]


def read_rows(folder: str, split: str) -> tuple[list[str], list[int]]:
    """Return the paths and the labels of the images of a split, in the order of the exported file."""
    with Path(folder, "images.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    return [row["path"] for row in rows], [int(row["label"]) for row in rows]


def read_batches(job: Job) -> list[list[int]]:
    """Return the rows in the training split of each batch of the job."""
    batches: list[list[int]] = json.loads(Path(job.folder, "batches.json").read_text(encoding="utf-8"))
    return batches[: job.steps]


class GivenBatches(BatchSampler):
    """Yields the batches that the driver drew, which are those that dml trains on.

    Args:
        batches: rows of each batch.
    """

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

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
    """The images of a split, decoded by Pillow.

    Args:
        job: the job, which names the folder and the size.
        split: name of the split.
    """

    def __init__(self, job: Job, split: str) -> None:
        self.paths, self.labels = read_rows(job.folder, split)
        self.transform = build_transform(job.size, is_training=split == "train")

    def __getitem__(self, row: int) -> Item:
        with Image.open(self.paths[row]) as image:
            return self.transform(image.convert("RGB")), self.labels[row]

    def __len__(self) -> int:
        return len(self.paths)


class Network(nn.Module):
    """The network that all train: timm's without its classifier, and a linear layer, with the exported weights.

    Args:
        job: the job, which names the folder of the weights, and the number of threads.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        torch.manual_seed(0)
        torch.set_num_threads(job.threads)
        self.memory_format = torch.channels_last if job.channels_last else torch.contiguous_format
        trunk: Any = timm.create_model(NETWORK, num_classes=0)
        self.trunk = trunk
        self.head = nn.Linear(trunk.num_features, EMBED_DIM, bias=False)
        self.load_state_dict(torch.load(Path(job.folder, "network.pt"), weights_only=True))
        self.to(memory_format=self.memory_format)

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


def sum_weights(network: nn.Module) -> float:
    """Return the sum of the absolute weights, by which the driver sees whether all begin with the same."""
    return sum(float(parameter.detach().double().abs().sum()) for parameter in network.parameters())


def read_given_embeddings(folder: str) -> tuple[Tensor, Tensor]:
    """Return the embeddings (N, D) and labels (N,) on which the metrics of all are compared."""
    stored = np.load(Path(folder, "embeddings.npz"))
    return torch.from_numpy(stored["embeddings"]), torch.from_numpy(stored["labels"])
