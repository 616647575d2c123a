"""The training of the heads alone, on head inputs that were computed before."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from dml.models.embedding import EmbeddingModel
from dml.training.frozen.head_inputs import unpack_inputs
from dml.training.module import MetricLearner


class HeadNetwork(nn.Module):
    """The heads of a model as a network of head inputs.

    Args:
        model: network with its heads.

    Attributes:
        shapes: shape of one image's input by head.
    """

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model
        self.shapes: Mapping[str, tuple[int, ...]] = {}

    def forward(self, values: Tensor) -> dict[str, Tensor]:
        """Embed head inputs (B, F) -> embeddings (B, D) by head."""
        return self.model.embed_inputs(unpack_inputs(values, self.shapes))


class FrozenLearner(MetricLearner):
    """A `MetricLearner` that trains the heads alone; its batches hold head inputs (B, F) in the place of images.

    Checkpoints hold the whole model, so they are used as those of any other training.
    """

    model: EmbeddingModel

    def __init__(self, model: EmbeddingModel, *arguments: Any, **settings: Any) -> None:
        super().__init__(model, *arguments, **settings)
        model.backbone.requires_grad_(False)
        # In a list the network is no submodule: a checkpoint would hold the model's parameters twice.
        self._head_network = [HeadNetwork(model)]

    @property
    def network(self) -> HeadNetwork:
        """The network that embeds the head inputs of a training step."""
        return self._head_network[0]

    def embed_images(self, images: Tensor) -> dict[str, Tensor]:
        """Embed head inputs (B, F), or images (B, 3, H, W) of a test of several views -> embeddings (B, D) by head."""
        return self.network(images) if images.ndim == 2 else super().embed_images(images)
