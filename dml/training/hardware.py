"""What else the machine decides: compilation, batch normalization over several processes, Slurm."""

import os
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from torch import nn

from dml.runtime.errors import InputError


def parse_compile(value: Any) -> dict[str, Any] | None:
    """Return the arguments of torch.compile for a value of ``training.compile``; None for no compilation."""
    if value is None or isinstance(value, bool):
        return {} if value else None
    known = set(signature(torch.compile).parameters) - {"model"}
    if not isinstance(value, Mapping) or not value.keys() <= known:
        raise InputError(
            f"training.compile={value}: true, null, or arguments of torch.compile: {', '.join(sorted(known))}"
        )
    return {str(name): argument for name, argument in value.items()}


def check_synchronized(model: nn.Module) -> None:
    """Check that ``trainer.sync_batchnorm``, which makes all normalizations plain, leaves a model what it computes."""
    plain = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and type(module) not in plain:
            raise InputError(
                f"trainer.sync_batchnorm=true: would replace {name} by a normalization without what "
                f"{type(module).__name__} does beside it, such as its activation; leave it out"
            )


def slurm() -> SLURMEnvironment:
    """Make the Lightning environment of a job that srun started; its requeueing would write a checkpoint of its own."""
    if "SLURM_PROCID" not in os.environ:
        raise InputError("trainer=slurm: srun did not start this process; srun python train.py ..., or trainer=ddp")
    return SLURMEnvironment(auto_requeue=False)
