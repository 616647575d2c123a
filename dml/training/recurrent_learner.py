from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from dml.models.recurrent import RecurrentModel
from dml.ops.training_protocols import EmbeddingBank
from dml.training.callbacks.embedding_bank import HeadBank, find_neighbors
from dml.training.embedders import Embedded, ModelEmbedder
from dml.training.module import MetricLearner

ROWS_PER_BLOCK = 4096
"""Number of images whose neighborhoods are read together."""
BANK_PREFIX = "stored/"
"""Prefix of a head's name, for the embeddings by the pre-trained network."""


class RecurrentEmbedder(ModelEmbedder):
    """Embeds a split with a `RecurrentModel`: an image's neighbors come from the images of its own split."""

    model: RecurrentModel

    def embed_for_bank(self, images: Tensor) -> dict[str, Tensor]:
        """Embed images (B, 3, H, W) with the pre-trained network -> embeddings (B, D) by head."""
        return cast(dict[str, Tensor], self.model.pretrained(images))

    def embed_images(self, images: Tensor) -> dict[str, Tensor]:
        """Compute each head's f (B, D) of images (B, 3, H, W), and the pre-trained network's as ``stored/HEAD``."""
        embeddings: dict[str, Tensor] = self.model.cnn(images)
        return embeddings | {f"{BANK_PREFIX}{head}": rows for head, rows in self.embed_for_bank(images).items()}

    def finalize(self, split: Embedded) -> Embedded:
        """Compute L2-normalized g of each head and of all heads; the neighbors of a row are in its own split."""
        embeddings = {head: torch.empty_like(split.embeddings[head]) for head in self.model.embed_dims}
        splits = self._splits(split.rows)
        for name in np.unique(splits):
            rows = torch.from_numpy(np.flatnonzero(splits == name))
            parts = {name: part[rows] for name, part in split.embeddings.items()}
            for head, part in self._read_split(parts).items():
                embeddings[head][rows] = part
        return super().finalize(Embedded(embeddings, split.rows))

    def _read_split(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute g (N, D) by head of the images of one split from what `embed_images` returned for them."""
        bank_embeddings = {head: parts[f"{BANK_PREFIX}{head}"] for head in self.model.embed_dims}
        return read_neighborhoods(self.model, parts, find_neighbors(self.model, bank_embeddings, self.model.neighbors))

    def _splits(self, rows: Tensor) -> Any:
        """Return the names (N,) of the splits of rows (N,): In-shop's queries and gallery are two splits."""
        images: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        split = images.tested_on if self.trainer.testing else images.validated_on
        return images.table.select_evaluated(split).split[rows.numpy()]


class RecurrentLearner(RecurrentEmbedder, MetricLearner):
    """Trains a `RecurrentModel` (chapter 4 of the thesis) with neighbors in the embedding bank of the training set."""

    model: RecurrentModel
    bank: HeadBank | None = None

    @property
    def num_bank_neighbors(self) -> int:
        """The number of neighbors that the model reads."""
        return self.model.neighbors

    def set_embedding_bank(self, bank: EmbeddingBank) -> None:
        """Read neighbors from this bank from now on."""
        self.bank = HeadBank(dict(bank.by_head), bank.neighbors[:, : self.model.neighbors])

    @property
    def network(self) -> nn.Module:
        """The network that is trained, whose embeddings the LSTMs read."""
        return self.model.cnn

    def embed_for_loss(self, images: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """Embed images (B, 3, H, W) with rows (B,) in the training table -> g (B, D) by head (Eq. 4.3)."""
        if self.bank is None:
            raise RuntimeError("a recurrent model needs an embedding bank, and none was set")
        generator = torch.Generator().manual_seed(torch.initial_seed())  # `StepSeed` has set the seed of the step.
        centers = super().embed_for_loss(images, rows)
        return self.model.read(centers, self.bank.neighbor_embeddings(rows, images.device), generator)


@torch.no_grad()
def read_neighborhoods(model: RecurrentModel, centers: Mapping[str, Tensor], near: HeadBank) -> dict[str, Tensor]:
    """Compute g (N, D) of images from their f and the embeddings of their neighbors -> g by head, on CPU."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)  # of the neighbors' order, if the model orders them randomly
    parts = []
    for rows in torch.split(torch.arange(len(near.neighbors)), ROWS_PER_BLOCK):
        block = {head: centers[head][rows].to(device) for head in model.embed_dims}
        parts.append(model.read(block, near.neighbor_embeddings(rows, device), generator))
    return {head: torch.cat([part[head].cpu() for part in parts]) for head in model.embed_dims}
