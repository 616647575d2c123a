"""Callbacks that set the state of the process in each step: random numbers, precision, handlers of signals."""

import random
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from dml.runtime import signals


class StepSeed(Callback):
    """Seeds the random number generators before every step from (seed, step, rank): a resumed run draws the same."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, _batch: Any, batch_idx: int) -> None:
        """Seed the global generators of torch, NumPy and Python."""
        entropy = np.random.SeedSequence((self.seed, batch_idx, trainer.global_rank))
        step_seed = int(entropy.generate_state(1)[0])
        if module.device.type == "cpu":
            torch.default_generator.manual_seed(step_seed)  # to seed generators of absent GPUs takes 1 ms
        else:
            torch.manual_seed(step_seed)
        np.random.seed(step_seed)  # noqa: NPY002
        random.seed(step_seed)


PRECISIONS = {
    None: ("highest", True),
    "highest": ("highest", False),
    "high": ("high", True),
    "medium": ("medium", True),
}
"""By precision: torch's name of the precision of matrix products, and whether convolutions are computed in TF32."""


class Float32Precision(Callback):
    """Sets the precision of float32 products and convolutions on a GPU for training steps; elsewhere it is full.

    TF32 keeps 10 of the 23 bits of a mantissa, which can change the nearest neighbor, but doesn't harm training.

    Args:
        precision: "highest" for float32; "high" for TF32; "medium" for bfloat16 in matrix products and TF32 in
            convolutions; None for torch's default, which is TF32 in convolutions only.
    """

    def __init__(self, precision: str | None) -> None:
        self.precision = precision

    def setup(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Set full precision."""
        self._set_precision(trainer, "highest")

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Set the precision of training steps."""
        self._set_precision(trainer, self.precision)

    on_train_batch_end = setup

    def _set_precision(self, trainer: Trainer, precision: str | None) -> None:
        if trainer.strategy.root_device.type == "cuda":
            products, convolutions = PRECISIONS[precision]
            torch.set_float32_matmul_precision(products)
            torch.backends.cudnn.allow_tf32 = convolutions


class SignalHandling(Callback):
    """Handles signals as dml does, in each loop: Lightning has just replaced the handler of SIGTERM by one that hangs.

    It exchanges tensors while other processes may be exchanging others.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Handle signals again."""
        signals.handle_again()

    on_validation_start = on_test_start = on_train_start
