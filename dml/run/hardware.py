"""What a configuration leaves to the machine that it runs on."""

import os
from inspect import signature
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from dml.ops.errors import InputError

MOST_WORKERS = 16
"""Of a process: each holds batches in memory."""


def uses_cuda(trainer: DictConfig) -> bool:
    """Whether ``trainer.accelerator`` is, or will turn out to be, an NVIDIA GPU."""
    return trainer.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def loader_settings(config: DictConfig) -> dict[str, Any]:
    """``data.*`` for `LoaderSettings`, each ``auto`` decided.

    Raises:
        InputError: for a value that is neither ``auto`` nor what the key takes.
    """
    settings = {str(key): value for key, value in config.data.items() if key != "cache"}
    workers, pins = settings["num_workers"], settings["pin_memory"]
    if workers != "auto" and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 0):
        raise InputError(f"data.num_workers={workers}: a number of processes, 0 or more, or auto")
    if pins not in ("auto", True, False):
        raise InputError(f"data.pin_memory={pins}: true, false or auto")
    if workers == "auto":
        settings["num_workers"] = _workers(config.trainer)
    if pins == "auto":
        settings["pin_memory"] = uses_cuda(config.trainer)
    return settings


def deterministic(trainer: DictConfig) -> Any:
    """``trainer.deterministic``; null stands for "warn" on a CPU, where it costs nothing, and for false on a GPU."""
    if trainer.deterministic is not None:
        return trainer.deterministic
    return False if uses_cuda(trainer) else "warn"


def compile_settings(config: DictConfig) -> dict[str, Any] | None:
    """The arguments of torch.compile that ``compile`` asks for, None for none.

    Raises:
        InputError: for anything but true, false, null, or its arguments.
    """
    asked = config.compile
    if asked is None or isinstance(asked, bool):
        return {} if asked else None
    known = set(signature(torch.compile).parameters) - {"model"}
    if not OmegaConf.is_dict(asked) or not asked.keys() <= known:
        raise InputError(f"compile={asked}: true, null, or arguments of torch.compile: {', '.join(sorted(known))}")
    return {str(name): value for name, value in asked.items()}


def _workers(trainer: DictConfig) -> int:
    """One where the CPU trains and needs the cores; beside a GPU all cores of the process but one."""
    if not uses_cuda(trainer):
        return 1
    return min(MOST_WORKERS, max(1, _cores(_processes(trainer.devices)) - 1))


def _cores(processes: int) -> int:
    """The cores that each of so many processes of this machine has to itself."""
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        return int(cores)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return allowed // processes


def _processes(devices: Any) -> int:
    """How many GPUs of this machine ``trainer.devices`` names: one process drives one."""
    if str(devices) in ("auto", "-1"):
        return torch.cuda.device_count()
    if isinstance(devices, str) and "," in devices:
        return len([name for name in devices.split(",") if name.strip()])
    return int(devices) if isinstance(devices, int | str) else len(devices)
