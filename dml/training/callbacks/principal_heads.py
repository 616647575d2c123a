from functools import partial
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from dml.models.embedding import EmbeddingModel
from dml.models.heads import begin_at_principal_components, last_layers
from dml.training.callbacks.embedding_bank_updates import embed_training_images
from dml.training.module import MetricLearner

WHITENING = {"principal_components": 0.0, "half_whitened_components": 0.5, "whitened_components": 1.0}
"""The share of the whitening by the values of ``initial_heads``, see `begin_at_principal_components`."""


def make_principal_heads(initial_heads: str | None, init: str | None = None) -> "PrincipalHeads | None":
    """Make the callback of ``initial_heads``; return None if the heads keep the weights that they have.

    Args:
        initial_heads: a key of `WHITENING`, or None.
        init: checkpoint whose weights the run begins with, its heads too; None for a run that begins anew.
    """
    return None if initial_heads is None or init else PrincipalHeads(WHITENING[initial_heads])


class PrincipalHeads(Callback):
    """Sets the heads' last layers to the principal components of their inputs before the first step.

    See `dml.models.heads`. The inputs are computed from the training images in evaluation mode and with the
    transform of a test. A head that does not end in a linear layer keeps its weights, and so do all heads of a later
    stage and of a resumed run.

    Args:
        whitening: share of the whitening of the components.
    """

    def __init__(self, whitening: float = 0.0) -> None:
        self.whitening = whitening

    @torch.no_grad()
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Embed the training images up to the last layers, and set these."""
        assert isinstance(pl_module, MetricLearner)
        if trainer.global_step or pl_module.run_description.get("first_step"):
            return
        model = pl_module.model if isinstance(pl_module.model, EmbeddingModel) else pl_module.model.cnn
        layers = last_layers(model.heads)
        if not layers:
            return
        inputs: dict[str, Tensor] = {}

        hooks = [layer.register_forward_pre_hook(partial(_keep, inputs, name)) for name, layer in layers.items()]

        def compute_inputs(images: Tensor, **_: object) -> dict[str, Tensor]:
            pl_module.embed_images(images)
            return dict(inputs)

        try:
            embedded = embed_training_images(trainer, pl_module, compute_inputs)
        finally:
            for hook in hooks:
                hook.remove()
        for name, layer in layers.items():
            begin_at_principal_components(layer, embedded.embeddings[name], self.whitening)
            # from the CPU: it is pickled, and a tensor of the first GPU would take all processes there
            layer.weight.copy_(trainer.strategy.broadcast(layer.weight.cpu()))


def _keep(inputs: dict[str, Tensor], name: str, _: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Keep the input of a layer that is about to be called."""
    inputs[name] = arguments[0].float()
