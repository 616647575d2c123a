"""Choices that depend on the machine: workers, deterministic algorithms, compilation, Slurm."""

import os
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from torch import nn

from dml.data.images import ImageLimits
from dml.runtime.errors import InputError
from dml.runtime.processes import count_processes
from dml.training.data import LoaderSettings

MOST_WORKERS = 16
"""The largest number of workers of a process, as each of them holds batches in memory."""


def uses_cuda(accelerator: str) -> bool:
    """Return whether ``trainer.accelerator`` is, or will turn out to be, an NVIDIA GPU."""
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def choose_loader_settings(data: Mapping[str, Any], trainer: Mapping[str, Any]) -> LoaderSettings:
    """Return the settings of the data loaders, with a value for each ``auto``."""
    limits = ImageLimits.from_settings(data)
    unused = {"cache", "check_images", "max_list_bytes", *vars(limits)}
    settings = {str(key): value for key, value in data.items() if key not in unused}
    has_gpu = uses_cuda(trainer["accelerator"])
    if settings["num_workers"] == "auto":
        # with a GPU one less than the cores of a process; without one, training uses the CPU too
        most = min(MOST_WORKERS, _count_cores(count_processes(trainer)) - 1)
        settings["num_workers"] = max(1, most) if has_gpu else 1
    if settings["pin_memory"] == "auto":
        settings["pin_memory"] = has_gpu
    return LoaderSettings(**settings, limits=limits)


def choose_deterministic(trainer: Mapping[str, Any]) -> Any:
    """Return ``trainer.deterministic``; null means "warn" on a CPU, where it costs nothing, and false on a GPU."""
    if trainer["deterministic"] is not None:
        return trainer["deterministic"]
    return False if uses_cuda(trainer["accelerator"]) else "warn"


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


def _count_cores(processes: int) -> int:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        return min(int(cores), allowed)  # srun may bind a task to fewer cores than the job asked for
    return allowed // processes


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
