from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dml.models.recurrent import RecurrentModel
from dml.retrieval.search import nearest_neighbors
from dml.training.embedding import Embedded, ModelEmbedder
from dml.training.gradient_cache import in_chunks
from dml.training.module import MetricLearner
from dml.training.stored import Stored

AT_ONCE = 4096  # rows whose neighbourhoods are read together
STORED = "stored/"  # before a head's name: what the pre-trained network makes of an image


class RecurrentEmbedder(ModelEmbedder):
    """Embeds a split with a `RecurrentModel`: an image's neighbours come from the images of its own split."""

    model: RecurrentModel

    def to_store(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> each head's embeddings (B, D) by the pre-trained network."""
        found: dict[str, Tensor] = self.model.pretrained(images)
        return found

    def of_images(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> each head's f (B, D), and the pre-trained network's as ``stored/HEAD``."""
        found: dict[str, Tensor] = self.model.cnn(images)
        return found | {f"{STORED}{head}": rows for head, rows in self.to_store(images).items()}

    def of_split(self, parts: Embedded) -> dict[str, Tensor]:
        """L2-normalised g of each head, and "all" of them concatenated; neighbours are of a row's own split."""
        embeddings = {head: torch.empty_like(parts.embeddings[head]) for head in self.model.embed_dims}
        splits = self._splits(parts.rows)
        for split in np.unique(splits):
            rows = torch.from_numpy(np.flatnonzero(splits == split))
            own = {name: part[rows] for name, part in parts.embeddings.items()}
            for head, found in self._of_one_split(own).items():
                embeddings[head][rows] = found
        return super().of_split(Embedded(embeddings, parts.rows))

    def _of_one_split(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        stored = {head: parts[f"{STORED}{head}"] for head in self.model.embed_dims}
        return read_neighborhoods(self.model, parts, Stored.of(self.model, stored, self.model.neighbors))

    def _splits(self, rows: Tensor) -> Any:
        """The split of each row of the table that is passed over: an In-shop query's is not the gallery's."""
        images: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        passed_over = images.tested_on if self.trainer.testing else images.validated_on
        return images.table.evaluated(passed_over).split[rows.numpy()]


class RecurrentLearner(RecurrentEmbedder, MetricLearner):
    """A `MetricLearner` of a `RecurrentModel`: chapter 4 of the thesis on local neighbourhood sampling.

    In training an image's neighbours are `stored`, of the training set.
    """

    model: RecurrentModel
    stored: Stored | None = None

    @property
    def network(self) -> nn.Module:
        """The network in training, whose embeddings the LSTMs read."""
        return self.model.cnn

    def embeddings(self, images: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W), their rows (B,) of the training table -> each head's g (B, D), Eq. 4.3."""
        if self.stored is None:
            raise RuntimeError("no embeddings of the training set were stored")
        generator = torch.Generator().manual_seed(torch.initial_seed())  # the step's, by `StepSeed`
        centres = in_chunks(self.trained_network, images, self.gradient_cache)
        return self.model.read(centres, self.stored.around(rows, images.device), generator)


@torch.no_grad()
def read_neighborhoods(model: RecurrentModel, centres: Mapping[str, Tensor], near: Stored) -> dict[str, Tensor]:
    """For each head f (N, D) of the rows whose neighbours are stored -> g (N, D), on CPU.

    The model is taken as it is: in evaluation mode there is no dropout. A random order is that of seed 0.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    parts = []
    for rows in torch.split(torch.arange(len(near.neighbors)), AT_ONCE):
        own = {head: centres[head][rows].to(device) for head in model.embed_dims}
        parts.append(model.read(own, near.around(rows, device), generator))
    return {head: torch.cat([part[head].cpu() for part in parts]) for head in model.embed_dims}


@torch.no_grad()
def embed_queries(model: RecurrentModel, images: Tensor, gallery: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Images (B, 3, H, W) that are not in the gallery -> g (B, D) of each head, on CPU, by their neighbours in it.

    Args:
        model: in evaluation mode.
        images: on its device.
        gallery: for each head what ``model.pretrained`` makes of the gallery's images (N, D), on CPU.
    """
    stored = {head: rows.cpu() for head, rows in model.pretrained(images).items()}
    units = [model.concatenate(own) for own in (stored, gallery)]
    neighbors = nearest_neighbors(units[0], model.neighbors, units[1])[1]
    centres = {head: rows.cpu() for head, rows in model.cnn(images).items()}
    return read_neighborhoods(model, centres, Stored(dict(gallery), neighbors))
