"""What the trained parts of the heads take of each image: computed once for a backbone that isn't trained."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.models.embedding import EmbeddingModel
from dml.ops.errors import InputError
from dml.training.embedders import Embedded, EmbeddedBatch, Embedder

RAW = "raw features"
"""The name of the backbone's own features, beside the head inputs that have the names of the heads."""

COPIES = 3
"""The number of times that head inputs are in memory while they are computed."""


@dataclass(frozen=True)
class HeadInputs:
    """The head inputs of all images of a table.

    Args:
        values: (N, F) float32, the flattened inputs of all heads, concatenated; NaN for an image that can't be read.
        shapes: shape of one image's input by head, in the order of the concatenation.
    """

    values: Tensor
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def pack(cls, inputs: Mapping[str, Tensor]) -> "HeadInputs":
        """Concatenate head inputs (N, ...) by head."""
        values = torch.cat([part.flatten(1) for part in inputs.values()], dim=1)
        return cls(values, {head: tuple(part.shape[1:]) for head, part in inputs.items()})


def unpack_inputs(values: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Split rows (B, F) of `HeadInputs` -> head inputs (B, ...) by head."""
    parts = torch.split(values, [prod(shape) for shape in shapes.values()], dim=1)
    return {head: part.reshape(-1, *shapes[head]) for head, part in zip(shapes, parts, strict=True)}


class FeatureEmbedder(Embedder):
    """Computes features of a split that don't change while the heads alone are trained.

    Args:
        model: network with its heads.
        names: the features to compute: heads, for their inputs, and `RAW`, for the backbone's own features, which are
            L2-normalised. With several views of each image, `RAW` alone can be computed.
        count: number of images of the split.
    """

    def __init__(self, model: EmbeddingModel, names: Sequence[str], count: int) -> None:
        super().__init__()
        self.model = model
        self.names = (*names,)
        self.count = count
        self._shapes: dict[str, tuple[int, ...]] = {}

    def embed_images(self, images: Tensor) -> dict[str, Tensor]:
        """Compute flattened features (B, F) of images (B, 3, H, W), by name."""
        features, maps = self.model.backbone(images)
        outputs = {RAW: features.flatten(1), **self.model.pool_maps(maps)}
        chosen = {name: outputs[name].float() for name in self.names}
        if not self._shapes:
            self._shapes = {name: tuple(part.shape[1:]) for name, part in chosen.items()}
            self._check_memory()
        return {name: part.flatten(1) for name, part in chosen.items()}

    def keep_batch(self, embeddings: dict[str, Tensor], rows: Tensor) -> EmbeddedBatch:
        """Return the features of a batch in the memory of the machine: those of a split can be larger than a GPU's."""
        return {name: part.cpu() for name, part in embeddings.items()}, rows.cpu()

    def finalize(self, split: Embedded) -> Embedded:
        """Give the features (N, ...) their shapes, and L2-normalise `RAW`."""
        features = {name: part.reshape(-1, *self._shapes[name]) for name, part in split.embeddings.items()}
        if RAW in features:
            features[RAW] = F.normalize(features[RAW], dim=1)
        return Embedded(features, split.rows)

    def _check_memory(self) -> None:
        """Make sure that the features of all images fit into the memory.

        Raises:
            InputError: if they don't.
        """
        largest = max(self._shapes, key=lambda name: prod(self._shapes[name]))
        needed = COPIES * 4 * self.count * sum(map(prod, self._shapes.values()))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > memory:
            kind = type(self.model.heads[largest]).__name__ if largest in self.model.heads else RAW
            raise InputError(
                f"training.frozen=true: the features of {self.count:,} images take {needed / 1e9:,.1f} GB of memory, "
                f"and this machine has {memory / 1e9:,.1f} GB; {largest} ({kind}) takes most: a PoolHead needs little"
            )
