from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from dml.ops.errors import InputError

PRECISIONS = {
    None: ("highest", True),
    "highest": ("highest", False),
    "high": ("high", True),
    "medium": ("medium", True),
}
"""For each choice torch's precision of matrix products, and whether convolutions are computed in TF32."""


class Float32Precision(Callback):
    """Chooses how a GPU computes float32 products and convolutions in training steps, and float32 itself elsewhere.

    TF32 keeps 10 of the 23 bits of a mantissa, so that embeddings are off by one part in a thousand: enough for another
    nearest neighbour. Training bears that; a validation or a test, and the embeddings of the training set, get all
    bits, whatever training asked for. On a CPU nothing is changed.

    Args:
        precision: "highest" is float32, "high" TF32, "medium" bfloat16 in matrix products and TF32 in convolutions;
            None is torch's own default, TF32 in convolutions alone.
    """

    def __init__(self, precision: str | None) -> None:
        if precision not in PRECISIONS:
            raise InputError(f"matmul_precision={precision}: highest, high, medium or null")
        self.precision = precision

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Choose float32."""
        self._choose(trainer, "highest")

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:  # noqa: ARG002
        """Choose what training asked for."""
        self._choose(trainer, self.precision)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:  # noqa: ARG002
        """Choose float32."""
        self._choose(trainer, "highest")

    def _choose(self, trainer: Trainer, precision: str | None) -> None:
        if trainer.strategy.root_device.type == "cuda":
            products, convolutions = PRECISIONS[precision]
            torch.set_float32_matmul_precision(products)
            torch.backends.cudnn.allow_tf32 = convolutions
