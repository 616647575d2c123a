from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

PRECISIONS = {
    None: ("highest", True),
    "highest": ("highest", False),
    "high": ("high", True),
    "medium": ("medium", True),
}
"""By precision: torch's name of the precision of matrix products, and whether convolutions are computed in TF32."""


class Float32Precision(Callback):
    """Sets the precision of float32 products and convolutions on a GPU for training steps; elsewhere it is full.

    TF32 keeps 10 of the 23 bits of a mantissa. So embeddings have an error of one part in a thousand, which can change
    the nearest neighbour. This doesn't harm training. But validations, tests and the embeddings of the training set
    are computed in full precision. On a CPU this callback does nothing.

    Args:
        precision: "highest" for float32; "high" for TF32; "medium" for bfloat16 in matrix products and TF32 in
            convolutions; None for torch's default, which is TF32 in convolutions only.
    """

    def __init__(self, precision: str | None) -> None:
        self.precision = precision

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Set full precision."""
        self._set_precision(trainer, "highest")

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:  # noqa: ARG002
        """Set the precision of training steps."""
        self._set_precision(trainer, self.precision)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:  # noqa: ARG002
        """Set full precision."""
        self._set_precision(trainer, "highest")

    def _set_precision(self, trainer: Trainer, precision: str | None) -> None:
        if trainer.strategy.root_device.type == "cuda":
            products, convolutions = PRECISIONS[precision]
            torch.set_float32_matmul_precision(products)
            torch.backends.cudnn.allow_tf32 = convolutions
