"""The writing of checkpoints."""

from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import CheckpointIO
from torch import Tensor, nn

from dml.ops.errors import InputError
from dml.ops.filesystem.files import replacing
from dml.training.checkpointing.checkpoints import read_checkpoint
from dml.training.checkpointing.frozen_weights import FrozenWeights, fill_in


class AtomicCheckpointIO(CheckpointIO):
    """Reads checkpoints, and writes them so that the path always has a complete one, even if the process is killed.

    A checkpoint is written to a temporary file, which is then renamed. Weights that are NaN or infinite raise an error,
    so that they never replace good ones. Reading unpickles tensors and plain values only.

    Args:
        model: model in training, which has the frozen weights that checkpoints lack.
        frozen: the frozen weights that checkpoints needn't hold; None if they hold all weights.
    """

    def __init__(self, model: nn.Module | None = None, frozen: FrozenWeights | None = None) -> None:
        self.model, self.frozen = model, frozen

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:  # noqa: ARG002
        """Write a checkpoint to a path.

        Raises:
            InputError: if a weight is NaN or infinite.
        """
        names = [name for name, value in checkpoint["state_dict"].items() if not _is_finite(value)]
        if names:
            raise InputError(
                f"step {checkpoint['global_step']}: {len(names)} weights became NaN or infinite, such as {names[0]}; "
                f"{path} keeps its last good state, a lower optimizer.lr may help"
            )
        if self.frozen is not None:
            checkpoint = self.frozen.leave_out(checkpoint)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, on_disk=True) as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Any, map_location: Any | None = None, weights_only: bool | None = None) -> Any:  # noqa: ARG002
        """Read the checkpoint at a path; its tensors are on the CPU."""
        checkpoint = read_checkpoint(path)
        return checkpoint if self.model is None else fill_in(checkpoint, self.model, path)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete the checkpoint at a path."""
        Path(path).unlink(missing_ok=True)


def _is_finite(value: Any) -> bool:
    """Return whether a value holds no NaN and no infinity; a value without real numbers holds none."""
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(torch.isfinite(value).all())
