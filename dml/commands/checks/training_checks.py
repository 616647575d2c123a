"""The checks of strategy, optimizer, schedule, adapter, folds and loggers, before data is read or a model is built."""

import warnings
from functools import partial
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.strategies import StrategyRegistry
from torch import nn

from dml.commands.checks.config_types import check_types
from dml.commands.checks.crop_sizes import check_crops
from dml.commands.checks.finite_numbers import check_finite
from dml.models.backbone import LayeredParameters
from dml.ops.errors import InputError, check_number, check_whole, suggest
from dml.run.loop import make_loggers
from dml.run.model_tests.feature_source import check_frozen
from dml.run.stages import check_stages, list_stages
from dml.training.callbacks.last_checkpoint import check_intervals
from dml.training.callbacks.loss_schedule import make_loss_schedule
from dml.training.optimizers import optimizer_by_role
from dml.training.trainer_arguments import check_arguments

INTERVALS = 1000
"""The length that stands for each ``???`` of a schedule, whose true length is known once the data has been read."""


def check_job(command: str, config: DictConfig) -> None:
    """Make sure that a training's strategy, optimizer, schedule, adapter, fold, loggers and crops fit.

    Args:
        command: "train", "evaluate", "prepare", "inspect", "audit" or "shift".
        config: the composed configuration.

    Raises:
        InputError: if one refuses a setting, isn't installed, or contradicts ``frozen`` or ``stages``.
    """
    check_numbers(config)
    if command == "train":
        make_loggers(config)
        check_fold(config.dataset)
    stages = [] if command == "prepare" else list_stages(config)
    for stage, changes in zip(stages, config.stages.values() or [config], strict=False):
        if config.stages:
            check_types(stage.config, changes or OmegaConf.create())
        check_crops(stage.config.transform, is_trained=command == "evaluate")
        if command == "train":
            check_arguments(stage.config.trainer)
            check_strategy(stage.config.trainer.strategy)
            check_folding(stage.config)
            check_graphs(stage.config)
            check_warmup(stage.config.scheduler)
            check_intervals(stage.config.checkpoints.every_n_steps, stage.config.checkpoints.every_n_seconds)
            make_loss_schedule(stage.config.scheduler.loss)  # it checks its arguments
            check_frozen(stage.config)
            check_optimizer(stage.config)
            instantiate(stage.config.get("adapter"))  # an adapter checks its numbers, and that peft is installed
        check_finite(stage.config)
    if command == "train":
        check_stages(config, stages[0])


def check_numbers(config: DictConfig) -> None:
    """Make sure that the seed, the size of batches and the number of neighbours can be used.

    Raises:
        InputError: if one is too small, or the seed too large for NumPy and Lightning.
    """
    if isinstance(config.get("seed"), int) and config.seed >= 2**32:
        raise InputError(f"seed={config.seed}: must be below 2**32 = {2**32}")
    for key, least in {"seed": 0, "data.eval_batch_size": 1, "evaluation.fixed_neighbors": 1}.items():
        if (value := OmegaConf.select(config, key)) is not None:
            check_whole(key, value, least)


def check_fold(dataset: DictConfig) -> None:
    """Make sure that a data set without folds isn't asked for one: a sweep over folds would train on one split.

    Raises:
        InputError: if it is.
    """
    if dataset.get("fold") and not dataset.get("folds"):
        raise InputError(f"dataset.fold={dataset.fold}: it needs dataset.folds=5, which divides the training classes")


def check_strategy(strategy: Any) -> None:
    """Make sure that Lightning knows a strategy that is given by name.

    Raises:
        InputError: if it doesn't.
    """
    known = {"auto", *StrategyRegistry.available_strategies()}
    if isinstance(strategy, str) and strategy not in known:
        raise InputError(f"trainer.strategy={strategy}: unknown{suggest(strategy, known)}")


def check_folding(config: DictConfig) -> None:
    """Make sure that no normalisation is replaced that a convolution computes.

    Raises:
        InputError: if ``trainer.sync_batchnorm`` would replace those that ``model.backbone.fold_batchnorm`` folds.
    """
    if config.trainer.sync_batchnorm and OmegaConf.select(config, "model.backbone.fold_batchnorm"):
        raise InputError(
            "trainer.sync_batchnorm=true: replaces the batch normalisations that convolutions compute too; leave it "
            "out, as they are frozen and have no statistics to share"
        )


def check_graphs(config: DictConfig) -> None:
    """Make sure that nothing keeps outputs of a network that is compiled to CUDA graphs: its next call overwrites them.

    Raises:
        InputError: if ``gradient_cache`` or ``trainer.accumulate_grad_batches`` would.
    """
    mode = OmegaConf.select(config, "compile.mode") if OmegaConf.is_config(config.compile) else None
    if mode not in ("max-autotune", "reduce-overhead"):
        return
    several_batches = config.trainer.accumulate_grad_batches not in (None, 1)
    for key, is_given in (("gradient_cache", config.gradient_cache), ("accumulate_grad_batches", several_batches)):
        if is_given:
            raise InputError(
                f"compile={{mode: {mode}}}: its CUDA graphs overwrite what {key} keeps; "
                "compile={mode: max-autotune-no-cudagraphs}"
            )


def check_warmup(scheduler: DictConfig) -> None:
    """Make sure that the warm-up has a length, and isn't shorter than nothing.

    Raises:
        InputError: if it has none, or is.
    """
    for key in ("warmup_steps", "warmup_epochs"):
        if (length := scheduler.get(key)) is not None:
            check_number(f"scheduler.{key}", length, least=0)


def check_optimizer(config: DictConfig) -> None:
    """Make the optimizer and the schedule for three parameters of one value each, and move them by one step.

    An optimizer of the user's own that is no `optimizer_by_role`, and a schedule that isn't PyTorch's, are left alone:
    they may need the parameters of the real model.

    Args:
        config: configuration of a stage.

    Raises:
        InputError: if they refuse a setting.
    """
    make_optimizer = instantiate(config.optimizer)
    if not isinstance(make_optimizer, partial) or make_optimizer.func is not optimizer_by_role:
        return
    # two dimensions: some optimizers take matrices alone
    groups = {name: LayeredParameters([nn.Parameter(torch.zeros(1, 1))], [0]) for name in ("backbone", "heads", "loss")}
    optimizer = make_optimizer(groups)
    schedule_config = config.scheduler.schedule
    if schedule_config is None or not str(schedule_config.get("_target_")).startswith("torch."):
        return
    filled: DictConfig = schedule_config.copy()
    for key in filled:
        if OmegaConf.is_missing(filled, key):
            filled[key] = INTERVALS
    try:
        schedule = instantiate(filled)(optimizer)
        with warnings.catch_warnings():  # PyTorch warns that the optimizer took no step
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler")
            schedule.step()
    except (ValueError, TypeError, ArithmeticError) as error:
        raise InputError(f"scheduler.schedule: {_describe(filled)}: {' '.join(str(error).split())}") from error


def _describe(schedule_config: DictConfig) -> str:
    """Return a schedule as its call, such as "StepLR(step_size=0, gamma=0.2)"."""
    plain: Any = OmegaConf.to_container(schedule_config, resolve=True)
    values = ", ".join(f"{key}={value}" for key, value in plain.items() if not key.startswith("_"))
    return f"{str(plain['_target_']).rpartition('.')[2]}({values})"
