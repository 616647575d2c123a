from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from pytorch_lightning import LightningModule
from torch import Tensor

from dml.data.dataset import Batch
from dml.models.embedding import EmbeddingModel
from dml.ops.errors import InputError

Metrics = dict[str, float]
Evaluate = Callable[[Tensor, Tensor], Metrics]
"""Embeddings (N, D), their rows (N,) of the evaluated table -> metrics by name."""

ALL_HEADS = "all"


@dataclass
class Embedded:
    """A split in embeddings: {name: (N, D)} and rows (N,) of its table, in table order, on CPU."""

    embeddings: dict[str, Tensor]
    rows: Tensor


class Embedder(LightningModule):
    """Embeds a split in Lightning's evaluation loops, on any number of processes.

    `embedded` holds the last split; every process has all of it.
    """

    embedded: Embedded

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[tuple[dict[str, Tensor], Tensor]] = []

    def embed(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> L2-normalised embeddings (B, D) by name."""
        raise NotImplementedError

    def _collect(self, batch: Batch) -> None:
        images, _, rows = batch
        if len(rows):
            self._batches.append((self.embed(images), rows))

    def _gather(self) -> Embedded:
        """Puts the batches of all processes together, each row once, in table order."""
        batches, self._batches = self._batches, []
        if not batches:
            raise InputError("evaluation: not one image of the split could be read")
        rows = self._all_rows(torch.cat([rows for _, rows in batches]))
        order = rows.argsort()
        parts = {name: torch.cat([embeddings[name] for embeddings, _ in batches]) for name in batches[0][0]}
        return Embedded(
            embeddings={name: self._all_rows(part)[order].cpu() for name, part in parts.items()},
            rows=rows[order].cpu(),
        )

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
        self._collect(batch)

    def on_test_epoch_end(self) -> None:
        """Puts the split together."""
        self.embedded = self._gather()


class RawFeatures(Embedder):
    """The backbone's own pooled features, before any training: what its weights know already."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def embed(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> L2-normalised features (B, F)."""
        return {"raw": F.normalize(self.model.raw_features(images), dim=1)}


def evaluate_heads(embedded: Embedded, evaluate: Evaluate) -> Metrics:
    """The metrics of each head alone as ``heads/NAME/...``."""
    return {
        f"heads/{head}/{name}": value
        for head, embeddings in embedded.embeddings.items()
        if head != ALL_HEADS
        for name, value in evaluate(embeddings, embedded.rows).items()
    }
