from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytorch_lightning import LightningModule
from torch import Tensor

from dml.data.dataset import Batch
from dml.evaluation.items import ranking_device
from dml.evaluation.metric_names import HEADS, heads_of
from dml.models.embedding import EmbeddingModel
from dml.models.recurrent import RecurrentModel
from dml.ops.errors import InputError
from dml.training.crops import over_crops

Metrics = dict[str, float]
Evaluate = Callable[[Tensor, Tensor], Metrics]
"""Embeddings (N, D), their rows (N,) of the evaluated table -> metrics by name."""

AnyModel = EmbeddingModel | RecurrentModel

ALL_HEADS = "all"


@dataclass
class Embedded:
    """A split in embeddings: {name: (N, D)} and rows (N,) of its table, in table order, on CPU."""

    embeddings: dict[str, Tensor]
    rows: Tensor


class Embedder(LightningModule):
    """Embeds a split in Lightning's evaluation loops, on any number of processes.

    `embedded` holds the last split; every process has all of it. What an image gives by itself is `of_images`, what
    it takes all of the split for is `of_split`.
    """

    embedded: Embedded

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[tuple[dict[str, Tensor], Tensor]] = []

    def of_images(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> what is kept of each, (B, D) by name."""
        raise NotImplementedError

    def of_split(self, parts: Embedded) -> dict[str, Tensor]:
        """What `of_images` gave for all images of a split -> their L2-normalised embeddings (N, D) by name."""
        raise NotImplementedError

    def collect(self, batch: Batch, embed: Callable[[Tensor], dict[str, Tensor]]) -> None:
        """Keeps what ``embed`` makes of a batch's images."""
        images, _, rows = batch
        if len(rows):
            self._batches.append((over_crops(embed, images), rows))

    def gather_split(self) -> Embedded:
        """Puts the batches of all processes together, each row once, in table order."""
        batches, self._batches = self._batches, []
        # a process may have no image at all, and has to take part nevertheless
        sizes = self._sizes({name: part.shape[1] for name, part in batches[0][0].items()} if batches else {})
        rows = self._all_rows(
            torch.cat([torch.empty(0, dtype=torch.long, device=self.device), *(r for _, r in batches)])
        )
        order = rows.argsort()
        parts = {
            name: torch.cat([torch.empty(0, size, device=self.device), *(found[name] for found, _ in batches)])
            for name, size in sizes.items()
        }
        return Embedded(
            embeddings={name: self._all_rows(part)[order].cpu() for name, part in parts.items()},
            rows=rows[order].cpu(),
        )

    def _sizes(self, own: dict[str, int]) -> dict[str, int]:
        """The sizes of the embeddings by name, of a process that has some."""
        everyones: list[Any] = [own]
        if self.trainer.world_size > 1:
            everyones *= self.trainer.world_size
            dist.all_gather_object(everyones, own)
        sizes: dict[str, int] = max(everyones, key=len)
        if not sizes:
            raise InputError("evaluation: not one image of the split could be read")
        return sizes

    def _all_rows(self, part: Tensor) -> Tensor:
        """Concatenates the processes' tensors, whose lengths may differ."""
        if self.trainer.world_size == 1:
            return part
        lengths = self.gather(torch.tensor(len(part), device=self.device))
        padding = part.new_zeros(int(lengths.max()) - len(part), *part.shape[1:])
        gathered = self.gather(torch.cat([part, padding]))
        return torch.cat([rows[:length] for rows, length in zip(gathered, lengths.tolist(), strict=True)])

    def gather(self, part: Tensor, *, gradients: bool = False) -> Tensor:
        """Tensors of one shape (...) of W processes -> (W, ...), the same on each of them."""
        return cast(Tensor, self.all_gather(part, sync_grads=gradients))

    def test_step(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Embeds a batch."""
        self.collect(batch, self.of_images)

    def on_test_epoch_end(self) -> None:
        """Puts the split together."""
        self.embedded = self.embed_split()

    def embed_split(self) -> Embedded:
        """The embeddings of the split whose batches were collected."""
        parts = self.gather_split()
        return Embedded(self.of_split(parts), parts.rows)


class RawFeatures(Embedder):
    """The backbone's own pooled features, before any training: what its weights know already."""

    def __init__(self, model: AnyModel) -> None:
        super().__init__()
        self.model = model

    def of_images(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> features (B, F)."""
        return {"raw": self.model.raw_features(images)}

    def of_split(self, parts: Embedded) -> dict[str, Tensor]:
        """The L2-normalised features."""
        return {name: F.normalize(rows, dim=1) for name, rows in parts.embeddings.items()}


class ModelEmbedder(Embedder):
    """Embeds a split with an embedding model: all that a test of a checkpoint takes.

    Args:
        model: gives an embedding a head.
        head_sets: names of sets of heads, such as "L+M", whose concatenated embeddings are evaluated.
    """

    def __init__(self, model: AnyModel, head_sets: Sequence[str] = ()) -> None:
        super().__init__()
        self.model = model
        self.head_sets = head_sets

    def to_store(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> each head's embeddings (B, D) that neighbours are found among."""
        found: dict[str, Tensor] = self.model(images)
        return found

    def of_images(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> each head's embeddings (B, D)."""
        return self.to_store(images)

    def of_split(self, parts: Embedded) -> dict[str, Tensor]:
        """L2-normalised embeddings of each head, of each of `head_sets` and of "all" heads concatenated."""
        heads = {name: F.normalize(rows, dim=1) for name, rows in parts.embeddings.items()}
        sets = {
            name: self.model.concatenate({head: parts.embeddings[head] for head in heads_of(name)})
            for name in self.head_sets
        }
        return {ALL_HEADS: self.model.concatenate(parts.embeddings)} | sets | heads


def evaluate_heads(embedded: Embedded, names: Iterable[str], evaluate: Evaluate, device: torch.device) -> Metrics:
    """Compute the metrics of all heads together, under their own names, and of other heads as ``heads/NAME/...``.

    Args:
        embedded: the embeddings of a split.
        names: which embeddings to evaluate: `ALL_HEADS`, those of a head "H" or of a set of heads "L+M".
        evaluate: function that computes the metrics of embeddings.
        device: where the model is; the embeddings are ranked on its `ranking_device`.
    """
    metrics: Metrics = {}
    for heads in names:
        found = evaluate(embedded.embeddings[heads].to(ranking_device(device)), embedded.rows)
        metrics |= found if heads == ALL_HEADS else {f"{HEADS}/{heads}/{name}": found[name] for name in found}
    return metrics
