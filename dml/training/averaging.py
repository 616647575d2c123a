from itertools import chain
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from dml.ops.errors import InputError


class Averaging(WeightAveraging):
    """Keeps an exponential moving average of the weights, which takes their place wherever they are judged.

    After every optimizer step ``average <- d average + (1 - d) weights`` (Polyak and Juditsky, 1992, with weights that
    decay). The average begins as the weights after the first step, and after the n-th

        d = min(decay, n / (9 + n))

    so that the first steps, which count for little, are soon forgotten (TensorFlow's ``ExponentialMovingAverage`` with
    ``num_updates``): in a run of a few hundred steps a fixed decay of 0.999 would keep mostly those. Buffers of real
    numbers, such as running statistics, are averaged as well; others are copied.

    Validations run with the average, and checkpoints hold it as their ``state_dict``, so that whoever loads the model
    gets it. They hold the weights beside it, and training goes on with those.

    Args:
        decay: d after many steps, between 0 and 1.
    """

    def __init__(self, decay: float) -> None:
        if not isinstance(decay, float) or not 0 < decay < 1:
            raise InputError(f"ema={decay}: a decay between 0 and 1, such as 0.999, or null")
        super().__init__()
        self.decay = decay
        self._updates = 0  # as the average's own `n_averaged`, which is on the GPU, where to read it is to wait

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Makes the average."""
        self._device = trainer.strategy.root_device  # the module's own is still the CPU here
        super().setup(trainer, pl_module, stage)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Updates the average after an optimizer step."""
        if trainer.global_step > self._latest_update_step:
            self._update(pl_module)
            self._latest_update_step = trainer.global_step

    @torch.no_grad()
    def _update(self, module: LightningModule) -> None:
        """What `AveragedModel.update_parameters` does, which reads its counter from the GPU."""
        assert self._average_model is not None
        pairs = list(zip(_tensors(self._average_model.module), _tensors(module), strict=True))
        moving = [pair for pair in pairs if self._updates and pair[0].is_floating_point()]
        for average, own in pairs:
            if not self._updates or not average.is_floating_point():
                average.copy_(own)
        if moving:
            averages, weights = zip(*moving, strict=True)
            decay = min(self.decay, (self._updates + 1) / (self._updates + 10))
            # torch's interpolation leaves a weight that doesn't move as it is, to the last bit
            move: Any = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
            move(list(averages), list(weights), self._updates)
        self._average_model.n_averaged += 1
        self._updates += 1

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Goes on with the checkpoint's average."""
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        if self._average_model is not None:
            self._updates = int(self._average_model.n_averaged)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the average in place: the module's own hook of this name, which comes after, may still embed."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives the weights back, before the checkpoints are written."""
        super().on_validation_epoch_end(trainer, pl_module)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, without their graphs."""
    return [tensor.detach() for tensor in chain(module.parameters(), module.buffers())]
