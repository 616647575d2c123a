from itertools import chain
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Averaging(WeightAveraging):
    """Computes an exponential moving average of the weights, which validations and tests use in place of the weights.

    After every optimizer step ``average <- d average + (1 - d) weights`` (Polyak and Juditsky, 1992, with weights that
    decay). The average equals the weights after the first step. After the n-th step

        d = min(decay, n / (9 + n))

    as in TensorFlow's ``ExponentialMovingAverage`` with ``num_updates``: with a fixed decay of 0.999 the first weights
    would dominate the average of a run of a few hundred steps. Buffers of real numbers, such as running statistics, are
    averaged as well; other buffers, and those of losses, such as the embeddings of a memory, are copied.

    Checkpoints hold the average as their ``state_dict``, and the weights too, with which a resumed training continues.

    Args:
        decay: d after many steps, between 0 and 1.
    """

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self._updates = 0  # `AveragedModel.n_averaged` has the same value, but to read it from the GPU would wait.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the average."""
        self._device = trainer.strategy.root_device  # ``pl_module.device`` is still the CPU here.
        super().setup(trainer, pl_module, stage)

    @torch.no_grad()
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with the weights of the first step, which callbacks may have set since the average was made."""
        super().on_train_start(trainer, pl_module)
        if not trainer.global_step:
            assert self._average_model is not None
            for average, current in zip(_tensors(self._average_model.module), _tensors(pl_module), strict=True):
                average.copy_(current)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Update the average after an optimizer step."""
        if trainer.global_step > self._latest_update_step:
            self._update(pl_module)
            self._latest_update_step = trainer.global_step

    @torch.no_grad()
    def _update(self, module: LightningModule) -> None:
        """Update the average as `AveragedModel.update_parameters` does, without waiting for the GPU."""
        assert self._average_model is not None
        pairs = zip(_tensors(self._average_model.module), _tensors(module), _list_averaged(module), strict=True)
        averages: list[Tensor] = []
        weights: list[Tensor] = []
        for average, current, is_averaged in pairs:
            if self._updates and is_averaged:
                averages.append(average)
                weights.append(current)
            else:
                average.copy_(current)
        if averages:
            decay = min(self.decay, (self._updates + 1) / (self._updates + 10))
            # The interpolation of torch leaves a constant weight exactly as it is.
            move: Any = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
            move(averages, weights, self._updates)
        self._average_model.n_averaged += 1
        self._updates += 1

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the average of a checkpoint."""
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        if self._average_model is not None:
            self._updates = int(self._average_model.n_averaged)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the average in the module, whose hook of this name comes after this one and may still embed images."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the weights back into the module before the checkpoints are written."""
        super().on_validation_epoch_end(trainer, pl_module)


def _list_averaged(module: nn.Module) -> list[bool]:
    buffers = [buffer.is_floating_point() and not name.startswith("losses.") for name, buffer in module.named_buffers()]
    return [*(parameter.is_floating_point() for parameter in module.parameters()), *buffers]


def _tensors(module: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in chain(module.parameters(), module.buffers())]
