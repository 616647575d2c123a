"""Builds what runs the training loop: Lightning's Trainer and its loggers."""

from collections.abc import Sequence
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, open_dict
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ProgressBar

from dml.ops.errors import InputError
from dml.run.hardware import deterministic
from dml.run.loggers import log_configuration
from dml.run.trainer_arguments import check_arguments
from dml.training.float32 import Float32Precision
from dml.training.processes import Together
from dml.training.progress import progress


def trainer(config: DictConfig, *, callbacks: Sequence[Callback] | None = None, **settings: Any) -> Trainer:
    """Lightning's Trainer.

    Args:
        config: the configuration; what is null in its ``trainer`` is Lightning's default.
        callbacks: those of a training, which the user's own join; None: it is for tests alone.
        settings: arguments that come on top of ``trainer.*``.

    Raises:
        InputError: for an argument that dml sets itself.
    """
    # part of `deterministic`, for code that reads memory it has not written: 10 % of a step for nothing
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    check_arguments(config.trainer)
    given = config.trainer.copy()
    with open_dict(given):
        for key in [key for key in given if given[key] is None]:
            del given[key]
        users, plugins = (instantiate(given.pop(key, []), _convert_="all") for key in ("callbacks", "plugins"))
    interval = given.get("val_check_interval")
    all_callbacks = [Together(), Float32Precision(config.matmul_precision)]
    all_callbacks += [] if callbacks is None else [*callbacks, *users]
    if given.get("enable_progress_bar") is False:
        all_callbacks = [callback for callback in all_callbacks if not isinstance(callback, ProgressBar)]
    arguments = {
        "max_epochs": -1,
        "check_val_every_n_epoch": None,
        # Lightning counts batches
        "val_check_interval": interval * given.accumulate_grad_batches if interval else 1,
        "limit_val_batches": given.get("limit_val_batches", 1.0) if interval else 0,
        "deterministic": deterministic(config.trainer),
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_model_summary": given.get("enable_model_summary", False),
        "callbacks": all_callbacks,
        "plugins": [*plugins, *settings.pop("plugins", [])],
    }
    built: Trainer = instantiate(given, _convert_="all", **(arguments | settings))
    return built


def testing_trainer(config: DictConfig, **settings: Any) -> Trainer:
    """Lightning's Trainer of a test alone: without the user's callbacks, but it shows how far the test is."""
    built = trainer(config, logger=False, enable_checkpointing=False, enable_progress_bar=False, **settings)
    if config.trainer.enable_progress_bar is not False:
        built.callbacks.append(progress())  # type: ignore[attr-defined]
    return built


def loggers(config: DictConfig) -> list[Any]:
    """The loggers that are asked for beside ``metrics.csv``, which have been told the configuration.

    Raises:
        InputError: if one of them isn't installed.
    """
    try:
        built = [instantiate(logger) for logger in config.logger.loggers.values()]
    except Exception as error:
        if isinstance(error.__cause__, ImportError):
            names = ", ".join(config.logger.loggers)
            raise InputError(f"logger={names}: not installed; pip install 'dml[{names}]'") from error
        raise
    log_configuration(built, config)
    return built
