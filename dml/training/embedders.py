"""Lightning modules that embed a split, the metrics of its heads, and the choice of heads: ``choose_heads``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytorch_lightning import LightningModule
from torch import Tensor

from dml.data.dataset import Batch
from dml.evaluation.metric import HEADS, MetricName, join_head_names, split_head_names
from dml.models.embedding import embed_views
from dml.models.recurrent import AnyModel
from dml.retrieval.rows import ranking_device
from dml.runtime.errors import InputError
from dml.training.distributed import gather_rows

Metrics = dict[str, float]
Evaluate = Callable[[Tensor, Tensor], Metrics]
"""Function of embeddings (N, D) and their rows (N,) of the evaluated table -> metrics by name."""

EmbeddedBatch = tuple[dict[str, Tensor], Tensor]
"""Embeddings (B, D) of a batch by name, and the rows (B,) of its images in the table."""

CHOSEN_HEADS = "chosen"
"""The name of the concatenated embeddings of a model's `EmbeddingModel.chosen_heads`."""


@dataclass
class Embedded:
    """The embeddings (N, D) of a split by name, in the order of the table, and the rows (N,) of its images, on CPU."""

    embeddings: dict[str, Tensor]
    rows: Tensor


class Embedder(LightningModule):
    """Embeds a split in Lightning's evaluation loops, on any number of processes.

    A subclass says what to compute from a batch of images, `embed_images`, and from all of a split, `finalize`. After a
    test every process has all of its split as ``embedded``.
    """

    embedded: Embedded

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[EmbeddedBatch] = []

    def embed_images(self, images: Tensor) -> dict[str, Tensor]:
        """Embed images (B, 3, H, W) -> embeddings (B, D) by name, from which `finalize` computes those of the split."""
        raise NotImplementedError

    def finalize(self, split: Embedded) -> Embedded:
        """Compute the embeddings of a split, L2-normalized, from what `embed_images` returned for all its images."""
        raise NotImplementedError

    def test_step(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Embed a batch; the embeddings of several views of an image become one."""
        images, _, rows = batch
        if len(rows):
            has_views = isinstance(images, Tensor) and images.ndim > 4  # not head inputs, as with training.frozen
            embeddings = embed_views(self.embed_images, images) if has_views else self.embed_images(images)
            self._batches.append(self.keep_batch(embeddings, rows))

    def keep_batch(self, embeddings: dict[str, Tensor], rows: Tensor) -> EmbeddedBatch:
        """Return the embeddings of a batch as they are kept until the end of the split: on the device they are on."""
        return embeddings, rows

    def on_test_epoch_end(self) -> None:
        """Compute `embedded` from the batches of the test."""
        self.embedded = self.take_split()

    def take_split(self) -> Embedded:
        """Compute the embeddings of a split from its batches, and forget the batches."""
        batches, self._batches = self._batches, []
        return self.finalize(self.gather_split(batches))

    def gather_split(self, batches: Sequence[EmbeddedBatch]) -> Embedded:
        """Join the batches of all processes to one split, each row once and in the order of the table."""
        sizes = {name: part.shape[1:] for name, part in batches[0][0].items()} if batches else {}
        if self.trainer.world_size > 1:  # a process without any image takes part too, and learns the sizes of another
            sizes_of_all: list[Any] = [sizes] * self.trainer.world_size
            dist.all_gather_object(sizes_of_all, sizes)
            sizes = max(sizes_of_all, key=len)
        if not sizes:
            raise InputError("evaluation: not one image of the split could be read")
        device = batches[0][1].device if batches else self.device
        rows = torch.cat([torch.empty(0, dtype=torch.long, device=device), *(part for _, part in batches)])
        parts = {
            name: torch.cat([torch.empty(0, *size, device=device), *(embeddings[name] for embeddings, _ in batches)])
            for name, size in sizes.items()
        }
        if self.trainer.world_size > 1:
            rows, parts = gather_rows(self, rows), {name: gather_rows(self, part) for name, part in parts.items()}
        order = rows.argsort()
        return Embedded({name: part[order].cpu() for name, part in parts.items()}, rows[order].cpu())


class RawFeatures(Embedder):
    """Embeds a split with the pooled features of the backbone, without any head."""

    def __init__(self, model: AnyModel) -> None:
        super().__init__()
        self.model = model

    def embed_images(self, images: Tensor) -> dict[str, Tensor]:
        """Compute the features (B, F) of images (B, 3, H, W), by the name "raw"."""
        return {"raw": self.model.raw_features(images)}

    def finalize(self, split: Embedded) -> Embedded:
        """L2-normalize the features."""
        return Embedded({"raw": F.normalize(split.embeddings["raw"], dim=1)}, split.rows)


class ModelEmbedder(Embedder):
    """Embeds a split with an embedding model; ``head_sets`` are names of sets of heads, such as "L+M"."""

    def __init__(self, model: AnyModel, head_sets: Sequence[str] = ()) -> None:
        super().__init__()
        self.model = model
        self.head_sets = head_sets

    def embed_for_bank(self, images: Tensor) -> dict[str, Tensor]:
        """Embed images (B, 3, H, W) for the embedding bank -> embeddings (B, D) by head."""
        return self.embed_images(images)

    def embed_images(self, images: Tensor) -> dict[str, Tensor]:
        """Embed images (B, 3, H, W) -> embeddings (B, D) by head."""
        return cast(dict[str, Tensor], self.model(images))

    def finalize(self, split: Embedded) -> Embedded:
        """Compute L2-normalized embeddings by name: "chosen" heads concatenated, each of `head_sets`, and each head."""
        sets: dict[str, Sequence[str]] = {CHOSEN_HEADS: self.model.chosen_heads}
        sets |= {name: split_head_names(name) for name in (*self.head_sets, *split.embeddings)}
        joined = {
            name: self.model.concatenate({head: split.embeddings[head] for head in heads})
            for name, heads in sets.items()
        }
        return Embedded(joined, split.rows)


def evaluate_heads(embedded: Embedded, names: Iterable[str], evaluate: Evaluate, device: torch.device) -> Metrics:
    """Compute the metrics of the chosen heads, under their own names, and of other heads as ``heads/NAME/...``.

    ``names`` are `CHOSEN_HEADS`, heads "H" or sets of heads "L+M"; ``device`` is that of the model.
    """
    metrics: Metrics = {}
    for heads in names:
        values = _evaluate(embedded, heads, evaluate, device)
        metrics |= values if heads == CHOSEN_HEADS else {f"{HEADS}/{heads}/{name}": values[name] for name in values}
    return metrics


def _evaluate(embedded: Embedded, heads: str, evaluate: Evaluate, device: torch.device) -> Metrics:
    return evaluate(embedded.embeddings[heads].to(ranking_device(device)), embedded.rows)


@dataclass(frozen=True)
class HeadChoice:
    """Chooses the best of the last head, the last two heads, and so on to all heads."""

    heads: Sequence[str]  # from low to high
    monitor: str  # the metric that compares sets of heads, on which checkpoints are chosen as well
    mode: str = "max"  # "min" if smaller values are better
    tie_breaker: str | None = None  # decides between equal values, the larger the better; None: more heads

    @property
    def candidates(self) -> list[str]:
        """The names of the sets of heads, the largest one first.

        >>> HeadChoice(["L", "M", "H"], "level0/recall@1").candidates
        ['L+M+H', 'M+H', 'H']
        """
        return [join_head_names(self.heads[first:]) for first in range(len(self.heads))]

    def choose(self, embedded: Embedded, evaluate: Evaluate, device: torch.device) -> tuple[tuple[str, ...], Metrics]:
        """Evaluate the embeddings of each set -> the heads of the best one, and its metrics."""
        metrics = {name: _evaluate(embedded, name, evaluate, device) for name in self.candidates}
        best = max(metrics, key=lambda name: self._rank(metrics[name]))
        return tuple(split_head_names(best)), metrics[best]

    def _rank(self, metrics: Metrics) -> tuple[float, float]:
        value = metrics[MetricName.parse(self.monitor).metric]
        tie = 0.0 if self.tie_breaker is None else metrics[self.tie_breaker]
        return (value if self.mode == "max" else -value), tie
