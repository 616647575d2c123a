"""The builders of what runs the training loop: Lightning's Trainer and its loggers."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from hydra.errors import InstantiationException
from omegaconf import OmegaConf, open_dict
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ProgressBar

from dml.ops.freed_memory import keep_freed_memory
from dml.run.building import build
from dml.run.config_folders import CONF
from dml.run.settings import Settings
from dml.run.stages import Stage
from dml.runtime.errors import InputError
from dml.runtime.run_folder import without_run_keys
from dml.training.callbacks.checkpoints import LastCheckpoint
from dml.training.callbacks.process_state import Float32Precision, SignalHandling
from dml.training.callbacks.progress import make_progress
from dml.training.hardware import check_accelerator, choose_deterministic
from dml.training.run_length import AUTO, COUNTED
from dml.training.trainer_arguments import check_arguments


def build_trainer(settings: Settings, *, callbacks: Sequence[Callback] | None = None, **changes: Any) -> Trainer:
    """Build Lightning's Trainer.

    A value below ``trainer`` that is null stands for Lightning's default, and ``changes`` replace such values. Without
    ``callbacks``, which the user's own join, it is a trainer of tests alone.

    Raises:
        InputError: if an argument is one that dml sets itself.
    """
    # part of trainer.deterministic, for code that reads memory it has not written: 10 % of a step for nothing
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    check_arguments(settings.trainer)
    check_accelerator(settings.trainer.accelerator)
    trainer_config = settings.trainer.copy()
    with open_dict(trainer_config):
        for key in [key for key, value in trainer_config.items() if value is None]:
            del trainer_config[key]
        for key in COUNTED:  # a test alone has no length
            if trainer_config.get(key) == AUTO:
                del trainer_config[key]
        users, plugins = (build(trainer_config.pop(key, []), _convert_="all") for key in ("callbacks", "plugins"))
    interval = trainer_config.get("val_check_interval")
    all_callbacks = [SignalHandling(), Float32Precision(settings.training.matmul_precision)]
    all_callbacks += [] if callbacks is None else [*callbacks, *users]
    if trainer_config.get("enable_progress_bar") is False:
        all_callbacks = [callback for callback in all_callbacks if not isinstance(callback, ProgressBar)]
    arguments = {
        "max_epochs": -1,
        "min_epochs": 0,  # Lightning takes one for granted beside min_steps, and an epoch has no end here
        "check_val_every_n_epoch": None,
        # Lightning counts batches
        "val_check_interval": interval * trainer_config.accumulate_grad_batches if interval else 1,
        "limit_val_batches": trainer_config.get("limit_val_batches", 1.0) if interval else 0,
        "deterministic": choose_deterministic(settings.trainer),
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_model_summary": trainer_config.get("enable_model_summary", False),
        "callbacks": all_callbacks,
        "plugins": [*plugins, *changes.pop("plugins", [])],
    }
    built: Trainer = build(trainer_config, _convert_="all", **(arguments | changes))
    keep_freed_memory(built.strategy.root_device)
    return built


def build_callbacks(settings: Settings) -> list[Callback]:
    """Build the entries of ``callbacks`` in order, without those that are null or whose function returns None.

    Raises:
        InputError: if an entry makes anything but a callback, or there is none that writes the last checkpoint.
    """
    callbacks = []
    for name, entry in settings.callbacks.items():
        if entry is None:
            continue
        built = build(entry, _convert_="all") if OmegaConf.is_dict(entry) else entry
        if isinstance(built, Callback):
            callbacks.append(built)
        elif built is not None:
            shown = f"{type(built).__name__}()" if OmegaConf.is_dict(entry) else repr(built)
            raise InputError(
                f"callbacks.{name}: {shown} is not a callback; a mapping is due whose _target_ is a subclass of "
                "pytorch_lightning.Callback, or null"
            )
    if not any(isinstance(callback, LastCheckpoint) for callback in callbacks):
        raise InputError(
            "callbacks.last_checkpoint=null: a run needs its last checkpoint; checkpoints.every_n_steps says how often "
            "it is written"
        )
    return callbacks


def build_testing_trainer(settings: Settings, **changes: Any) -> Trainer:
    """Build Lightning's Trainer of a test alone: without the user's callbacks, but it shows how far the test is."""
    built = build_trainer(settings, logger=False, enable_checkpointing=False, enable_progress_bar=False, **changes)
    if settings.trainer.enable_progress_bar is not False:
        built.callbacks.append(make_progress())  # type: ignore[attr-defined]
    return built


def make_loggers(settings: Settings) -> list[Any]:
    """Make the loggers beside ``metrics.csv``, which begin to log when they are given something.

    Raises:
        InputError: if a logger isn't installed, or may not send anything.
    """
    loggers = []
    for name, logger in settings.logger.loggers.items():
        if (CONF / "logger" / f"{name}.yaml").exists() and find_spec(name) is None:
            raise InputError(f"logger={name}: not installed; pip install 'dml-retrieval[{name}]'")
        try:
            loggers.append(build(logger))
        except InstantiationException as error:
            if not isinstance(error.__cause__, ImportError):
                raise
            raise InputError(f"logger={name}: {' '.join(str(error.__cause__).split())}") from error
    return loggers


def build_loggers(stage: Stage) -> list[Any]:
    """Make the loggers beside ``metrics.csv``, and log the configuration."""
    loggers = make_loggers(stage.settings)
    values: Any = OmegaConf.to_container(stage.config, resolve=True)
    for logger in loggers:
        logger.log_hyperparams(without_run_keys(values))
    return loggers
