"""The checks of strategy, optimizer, schedule, adapter, folds and loggers, before data is read or a model is built."""

import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.strategies import StrategyRegistry
from torch import nn

from dml.commands.required_values import select_used_parts
from dml.models.backbone import LayeredParameters
from dml.run import builders
from dml.run.building import build
from dml.run.evaluators import check_evaluation, choose_tested_split, complete_metric_names
from dml.run.feature_source import check_frozen
from dml.run.loop import make_loggers
from dml.run.settings import Settings, read_settings
from dml.run.stages import check_stages, list_stages
from dml.run.sweeps import monitored_metric
from dml.run.value_types import check_types
from dml.runtime.errors import InputError, suggest
from dml.training.callbacks.loss_schedule import make_loss_schedule
from dml.training.optimizers import optimizer_by_role
from dml.training.trainer_arguments import check_arguments

logger = logging.getLogger(__name__)

CROPS = ("torchvision.transforms.v2.CenterCrop", "torchvision.transforms.v2.RandomCrop")
"""Transforms that cut out a part of the resized image and don't scale it."""
RESIZES = ("dml.data.transforms.Resize", "torchvision.transforms.v2.Resize")
PAD = "dml.data.transforms.Pad"
CROP_REMEDY = "transform=imagenet resizes in proportion to transform.size"
PACKAGES = ("dml", "pytorch_metric_learning", "timm", "torch", "torchvision")
"""The packages whose parts take no infinite number; a part of the user's own may."""

INTERVALS = 1000
"""The length that stands for each ``???`` of a schedule, whose true length is known once the data has been read."""


def check_job(command: str, config: DictConfig) -> None:
    """Make sure that a training's strategy, optimizer, schedule, adapter, fold, loggers and crops fit.

    Raises:
        InputError: if one refuses a setting, isn't installed, or contradicts ``frozen`` or ``stages``.
    """
    if command == "train":
        run_settings = read_settings(config, Settings)
        make_loggers(run_settings)
        fold = run_settings.dataset.fold
        if fold and not run_settings.dataset.folds:  # a sweep over folds would train on one split
            raise InputError(f"dataset.fold={fold}: it needs dataset.folds=5, which divides the training classes")
    stages = [] if command == "prepare" else list_stages(config)
    for stage, changes in zip(stages, config.stages.values() or [config], strict=False):
        if config.stages:
            check_types(select_used_parts(command, stage.config), changes or OmegaConf.create(), command=command)
        settings = stage.settings
        check_crops(stage.config.transform, is_trained=command == "evaluate")
        if command == "train":
            check_arguments(settings.trainer)
            _check_trainer(settings)
            make_loss_schedule(settings.scheduler.loss)  # it checks its arguments
            check_frozen(settings)
            check_optimizer(settings)
            build(settings.adapter)  # an adapter checks its numbers, and that peft is installed
        check_finite(stage.config)
    if command == "train":
        check_stages(config, stages[0])


def _check_trainer(settings: Settings) -> None:
    """Make sure that Lightning knows a strategy by its name, and that the trainer suits normalizations and graphs.

    Raises:
        InputError: if ``trainer.sync_batchnorm`` would replace what ``model.backbone.fold_batchnorm`` folds into
            convolutions, or an option keeps outputs of a network that is compiled to CUDA graphs, which overwrites
            them when it is called again.
    """
    trainer, compilation = settings.trainer, settings.training.compile
    known = {"auto", *StrategyRegistry.available_strategies()}
    if isinstance(trainer.strategy, str) and trainer.strategy not in known:
        raise InputError(f"trainer.strategy={trainer.strategy}: unknown{suggest(trainer.strategy, known)}")
    if trainer.sync_batchnorm and settings.model.backbone.get("fold_batchnorm"):
        raise InputError(
            "trainer.sync_batchnorm=true: replaces the batch normalizations that convolutions compute too; leave it "
            "out, as they are frozen and have no statistics to share"
        )
    mode = compilation.get("mode") if isinstance(compilation, Mapping) else None
    keeping = ["gradient_cache"] if settings.training.gradient_cache else []
    keeping += ["accumulate_grad_batches"] if trainer.accumulate_grad_batches not in (None, 1) else []
    if mode in ("max-autotune", "reduce-overhead") and keeping:
        raise InputError(
            f"training.compile={{mode: {mode}}}: its CUDA graphs overwrite what {keeping[0]} keeps; "
            "training.compile={mode: max-autotune-no-cudagraphs}"
        )


def check_optimizer(settings: Settings) -> None:
    """Make the optimizer and the schedule for three parameters of one value each, and move them by one step.

    An optimizer of the user's own that is no `optimizer_by_role`, and a schedule that isn't PyTorch's, are left alone:
    they may need the parameters of the real model.

    Raises:
        InputError: if they refuse a setting.
    """
    make_optimizer = build(settings.optimizer)
    if not isinstance(make_optimizer, partial) or make_optimizer.func is not optimizer_by_role:
        return
    # two dimensions: some optimizers take matrices alone
    groups = {name: LayeredParameters([nn.Parameter(torch.zeros(1, 1))], [0]) for name in ("backbone", "heads", "loss")}
    optimizer = make_optimizer(groups)
    schedule_config = settings.scheduler.schedule
    if schedule_config is None or not str(schedule_config.get("_target_")).startswith("torch."):
        return
    filled: DictConfig = schedule_config.copy()
    for key in filled:
        if OmegaConf.is_missing(filled, key):
            filled[key] = INTERVALS
    try:
        schedule = build(filled)(optimizer)
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


def check_crops(transform: DictConfig, *, is_trained: bool = False) -> None:
    """Refuse a crop that is larger than the image is resized to before, and log a warning if it is less than half.

    Such a crop comes from a ``transform.size`` that the file's Resize doesn't follow: transform=rll resizes to 256, as
    the paper does. With transform.size=64 the test would see a sixteenth of each image, and with transform.size=336 a
    black frame around it. If a model ``is_trained`` with it, a crop that is too large is warned of, too.

    Raises:
        InputError: if a crop is larger than the resized image.
    """
    for split, size, resized in _find_crops(transform):
        line = f"transform.{split} crops {size} of {resized} pixels"
        if size > resized:
            line += ", and frames each image in black"
            if not is_trained:
                raise InputError(f"{line}: transform.size must be {resized} at most; {CROP_REMEDY}")
            logger.warning("%s; %s", line, CROP_REMEDY)
        elif 2 * size < resized:
            logger.warning("%s: most of each image is cut off; %s", line, CROP_REMEDY)


def _find_crops(transform: DictConfig) -> Iterator[tuple[str, int, int]]:
    """Yield the split of each crop behind a Resize, its side, and the side of the image that it is cut out of."""
    for split in ("train", "test"):
        steps = OmegaConf.to_container(transform[split], resolve=True) if split in transform else {}
        side: int | None = None
        for step in steps.get("steps") or () if isinstance(steps, Mapping) else ():
            target, size = (step.get("_target_"), step.get("size")) if isinstance(step, Mapping) else (None, None)
            if not isinstance(size, int):
                continue
            if target in RESIZES:
                side = size
            elif side is not None and target == PAD:
                side = max(side, size)
            elif side is not None and target in CROPS:
                yield split, size, side


FINITE = ("transform", "sampler", "model", "adapter", "recurrent", "loss", "distill", "optimizer", "scheduler")


def check_finite(config: DictConfig) -> None:
    """Refuse the first number that is NaN, or that is infinite below a key whose numbers are finite.

    Training would begin with it, and end with a line that blames the learning rate.

    Raises:
        InputError: naming the key and the value.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    for part, content in plain.items():
        for path, value, package in _list_floats(content, str(part), "dml"):
            is_finite = part in FINITE and package in PACKAGES
            if math.isnan(value) or (is_finite and math.isinf(value)):
                raise InputError(f"{path}={value}: must be a finite number")


def _list_floats(node: Any, path: str, package: str) -> Iterator[tuple[str, float, str]]:
    """Yield each float with its dotted path, and the package of the ``_target_`` that it is for."""
    if isinstance(node, float):
        yield path, node, package
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _list_floats(value, f"{path}[{index}]", package)
    elif isinstance(node, dict):
        target = node.get("_target_")
        package = target.partition(".")[0] if isinstance(target, str) else package
        for key, value in node.items():
            yield from _list_floats(value, f"{path}.{key}", package)


def check_search(config: DictConfig) -> None:
    """Make sure that the runs of a search validate, and that a validation has the metric.

    Raises:
        InputError: if no run could give the search a value.
    """
    complete_metric_names(config)
    settings = read_settings(config, Settings)
    table = builders.build_table(settings)
    choose_tested_split(settings, table)
    stages = list_stages(config)
    for stage in stages:
        check_evaluation(stage.settings, table)
    trainer, metric = stages[-1].settings.trainer, monitored_metric(settings)
    if metric.startswith("val/") and not len(table.rows("val")):
        raise InputError(
            f"sweep=optuna: {table.source} has no validation split for {metric}; dataset.folds=5 holds classes out"
        )
    if trainer.val_check_interval is None and trainer.get("check_val_every_n_epoch") is None:
        raise InputError(
            f"sweep=optuna: trainer.val_check_interval=null validates never, and the search optimizes {metric}; "
            "give a number of steps"
        )
