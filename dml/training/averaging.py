from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor
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
        super().__init__(multi_avg_fn=self._update)
        self.decay = decay

    def _update(self, average: Any, weights: Any, updates: Tensor | int) -> None:
        """One step of all tensors of a type; ``updates`` is the number of steps before."""
        if average[0].is_floating_point():
            before = int(updates)
            # torch's interpolation leaves a weight that doesn't move as it is, to the last bit
            step: Any = get_ema_multi_avg_fn(min(self.decay, (before + 1) / (before + 10)))  # type: ignore[no-untyped-call]
            step(average, weights, updates)
        else:
            for own, new in zip(average, weights, strict=True):
                own.copy_(new)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Makes the average."""
        self._device = trainer.strategy.root_device  # the module's own is still the CPU here
        super().setup(trainer, pl_module, stage)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the average in place: the module's own hook of this name, which comes after, may still embed."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives the weights back, before the checkpoints are written."""
        super().on_validation_epoch_end(trainer, pl_module)
