"""The builders of what runs the training loop: Lightning's Trainer, its callbacks and its loggers."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from hydra.errors import InstantiationException
from omegaconf import OmegaConf, open_dict
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ProgressBar

from dml.run.building import build
from dml.run.config_folders import CONF
from dml.run.interpolation import check_shares
from dml.run.settings import Settings
from dml.run.stages import Stage
from dml.runtime.errors import InputError
from dml.runtime.processes import keep_freed_memory
from dml.runtime.run_folder import without_run_keys
from dml.training.callbacks.averaging import Averaging
from dml.training.callbacks.checkpoints import BestCheckpoint, FirstCheckpoint, LastCheckpoint
from dml.training.callbacks.embedding_bank import EmbeddingBankUpdates
from dml.training.callbacks.initial_values import WHITENING, PrincipalHeads, ProxiesAtClassMeans
from dml.training.callbacks.loss_schedule import make_loss_schedule
from dml.training.callbacks.process_state import Float32Precision, SignalHandling, StepSeed
from dml.training.callbacks.progress import make_progress
from dml.training.callbacks.validations import FinalValidation, FirstValidation
from dml.training.hardware import check_accelerator, choose_deterministic
from dml.training.run_length import AUTO, COUNTED
from dml.training.trainer_arguments import check_arguments


def build_callbacks(settings: Settings) -> list[Callback]:
    """Build the callbacks of a training, in the order in which Lightning calls them; it calls checkpoints last."""
    training, checkpoints, schedule = (
        settings.training,
        settings.checkpoints,
        make_loss_schedule(settings.scheduler.loss),
    )
    users = _build_users_callbacks(settings)
    callbacks: list[Callback] = [StepSeed(settings.seed)]
    if schedule is not None:
        callbacks.append(schedule)
    if settings.heads.initial is not None and not training.init:  # else they begin as in the checkpoint
        callbacks.append(PrincipalHeads(WHITENING[settings.heads.initial]))
    callbacks.append(EmbeddingBankUpdates(training.bank_every_n_steps))
    if training.proxies is not None:
        callbacks.append(ProxiesAtClassMeans())
    if training.ema is not None:
        callbacks.append(Averaging(training.ema))
    if checkpoints.beginning:
        callbacks.append(FirstValidation())
    if checkpoints.interpolation:
        check_shares(checkpoints.interpolation)
        callbacks.append(FirstCheckpoint())
    callbacks.append(FinalValidation())
    if _shows_progress(settings) and not any(isinstance(callback, ProgressBar) for callback in users):
        callbacks.append(make_progress())
    return [
        *callbacks,
        *users,
        BestCheckpoint(checkpoints.monitor, checkpoints.mode, checkpoints.tie_breaker, checkpoints.patience),
        LastCheckpoint(checkpoints.every_n_steps, checkpoints.every_n_seconds),
    ]


def _build_users_callbacks(settings: Settings) -> list[Callback]:
    callbacks: list[Any] = [build(entry, _convert_="all") for entry in settings.trainer.callbacks or ()]
    for index, callback in enumerate(callbacks):
        if not isinstance(callback, Callback):
            raise InputError(
                f"trainer.callbacks[{index}]: a {type(callback).__name__} is no callback; a mapping is due whose "
                "_target_ is a subclass of pytorch_lightning.Callback"
            )
    return callbacks


def _shows_progress(settings: Settings) -> bool:
    return settings.trainer.enable_progress_bar is not False


def build_trainer(settings: Settings, *, callbacks: Sequence[Callback] = (), **changes: Any) -> Trainer:
    """Build Lightning's Trainer.

    A value below ``trainer`` that is null stands for Lightning's default, and ``changes`` replace such values.
    """
    # part of trainer.deterministic, for code that reads memory it has not written: 10 % of a step for nothing
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    check_arguments(settings.trainer)
    check_accelerator(settings.trainer.accelerator)
    trainer_config = settings.trainer.copy()
    with open_dict(trainer_config):
        for key, value in [*trainer_config.items()]:
            # a test alone has no length; the callbacks are built already
            if value is None or key == "callbacks" or (key in COUNTED and value == AUTO):
                del trainer_config[key]
        plugins = build(trainer_config.pop("plugins", []), _convert_="all")
    interval = trainer_config.get("val_check_interval")
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
        "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in callbacks),
        "callbacks": [SignalHandling(), Float32Precision(settings.training.matmul_precision), *callbacks],
        "plugins": [*plugins, *changes.pop("plugins", [])],
    }
    built: Trainer = build(trainer_config, _convert_="all", **(arguments | changes))
    keep_freed_memory(built.strategy.root_device)
    return built


def build_testing_trainer(settings: Settings, **changes: Any) -> Trainer:
    """Build Lightning's Trainer of a test alone, which shows how far the test is; see `build_trainer`."""
    callbacks = [make_progress()] if _shows_progress(settings) else []
    return build_trainer(settings, callbacks=callbacks, logger=False, enable_checkpointing=False, **changes)


def make_loggers(settings: Settings) -> list[Any]:
    """Make the loggers beside ``metrics.csv``, which begin to log when they are given something."""
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
