"""The exchange of tensors between the processes of a training; with one process they stay as they are."""

from typing import cast

import torch
from pytorch_lightning import LightningModule
from torch import Tensor


def gather_batch(module: LightningModule, part: Tensor) -> Tensor:
    """Concatenate the parts of a batch of all processes, with gradients.

    The backward pass adds up the gradients of all processes. If each of W processes computes the loss of the whole
    batch, they add up to W times the gradient. DistributedDataParallel takes the mean over the processes, which is the
    gradient.

    Args:
        module: module that the trainer runs.
        part: (B, ...) part of this process; all processes have the same B.
    """
    if module.trainer.world_size == 1:
        return part
    return _gather(module, part, with_gradients=part.is_floating_point()).flatten(0, 1)


def gather_values(module: LightningModule, values: Tensor) -> Tensor:
    """Stack the values (H,) of W processes -> (W, H), without gradients.

    Args:
        module: module that the trainer runs.
        values: (H,) values of this process; all processes have the same H.
    """
    return _gather(module, values).reshape(-1, *values.shape)


def gather_rows(module: LightningModule, part: Tensor) -> Tensor:
    """Concatenate the tensors (N, ...) of all processes, without gradients; N may differ between the processes.

    Args:
        module: module that the trainer runs.
        part: (N, ...) tensor of this process.
    """
    if module.trainer.world_size == 1:
        return part
    lengths = _gather(module, torch.tensor(len(part), device=module.device))
    padding = part.new_zeros(int(lengths.max()) - len(part), *part.shape[1:])
    gathered = _gather(module, torch.cat([part, padding]))
    return torch.cat([rows[:length] for rows, length in zip(gathered, lengths.tolist(), strict=True)])


def _gather(module: LightningModule, part: Tensor, *, with_gradients: bool = False) -> Tensor:
    """Gather tensors of one shape (...) from W processes -> (W, ...)."""
    return cast(Tensor, module.all_gather(part, sync_grads=with_gradients))
