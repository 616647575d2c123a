"""The builders of what trains and tests: data loaders, the learner, and Lightning's Trainer with its callbacks."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from omegaconf import OmegaConf, open_dict
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ProgressBar
from torch import nn

from dml.data.table import ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import MetricName, select_joint
from dml.evaluation.monitor import make_further_config, make_validation_config
from dml.losses.compose import check_pairs
from dml.losses.proxies import check_class_means, count_classes
from dml.models.recurrent import AnyModel, RecurrentModel
from dml.run import builders
from dml.run.building import build, build_values
from dml.run.config_folders import CONF
from dml.run.settings import Settings
from dml.run.stored import Stage
from dml.runtime.errors import InputError
from dml.runtime.processes import keep_freed_memory, uses_cuda
from dml.runtime.run_folder import without_run_keys
from dml.training.callbacks.averaging import Averaging
from dml.training.callbacks.checkpoints import (
    BestCheckpoint,
    FinalValidation,
    FirstCheckpoint,
    FirstValidation,
    LastCheckpoint,
)
from dml.training.callbacks.embedding_bank import EmbeddingBankUpdates, find_bank_users
from dml.training.callbacks.initial_values import WHITENING, PrincipalHeads, ProxiesAtClassMeans
from dml.training.callbacks.loss_schedule import LossSchedule
from dml.training.callbacks.process_state import Float32Precision, SignalHandling, StepSeed
from dml.training.callbacks.progress import make_progress
from dml.training.checkpoints import FrozenWeights
from dml.training.data import DataModule, EvaluationData, choose_loader_settings
from dml.training.embedders import HeadChoice, ModelEmbedder
from dml.training.frozen import FrozenDataModule, FrozenLearner
from dml.training.gradient_cache import check_chunk_size
from dml.training.hardware import check_synchronized, parse_compile
from dml.training.module import MetricLearner
from dml.training.optimizers import SchedulePace
from dml.training.recurrent_learner import RecurrentEmbedder, RecurrentLearner
from dml.training.trainer_arguments import AUTO, COUNTED, check_arguments, count_steps

QUICK_STEPS = 20
"""The largest number of optimizer steps of each stage of a quick run."""

QUICK_CLASSES_PER_BATCH = 48
"""The largest number of classes in a batch of a quick run: a validation fold takes some of `builders.QUICK_CLASSES`."""


def shorten(stage: Stage, typed: Collection[str] = ()) -> None:
    """Make the training of a stage short, in place: `QUICK_STEPS` optimizer steps or fewer, and two validations.

    Steps and classes of a batch whose keys were typed keep their numbers.
    """
    config, trainer, scheduler = stage.config, stage.config.trainer, stage.config.scheduler
    validates = trainer.val_check_interval is not None or trainer.check_val_every_n_epoch is not None
    with open_dict(config):
        is_given = isinstance(trainer.max_steps, int) and trainer.max_steps > 0
        most = trainer.max_steps if "trainer.max_steps" in typed else QUICK_STEPS
        steps = min(trainer.max_steps, most) if is_given else QUICK_STEPS
        trainer.max_steps, trainer.max_epochs = steps, None
        trainer.val_check_interval = max(steps // 2, 1) if validates else None
        trainer.check_val_every_n_epoch = None
        scheduler.warmup_steps = 1 if scheduler.warmup_steps or scheduler.get("warmup_epochs") else 0
        scheduler.warmup_epochs = None
        config.training.bank_every_n_steps = None
        classes = OmegaConf.select(config, "sampler.classes_per_batch")
        if isinstance(classes, int) and "sampler.classes_per_batch" not in typed:
            config.sampler.classes_per_batch = min(classes, QUICK_CLASSES_PER_BATCH)


def count_in_steps(stage: Stage, batches_per_epoch: int) -> None:
    """Replace the epochs of a stage by steps, in place, see `dml.training.trainer_arguments.count_steps`."""
    trainer, scheduler = stage.config.trainer, stage.config.scheduler
    length = count_steps(trainer, scheduler, batches_per_epoch)
    with open_dict(stage.config):
        trainer.pop("check_val_every_n_epoch")
        trainer.max_epochs, scheduler.warmup_epochs = None, None
        trainer.max_steps, trainer.val_check_interval = length.max_steps, length.val_check_interval
        scheduler.warmup_steps = length.warmup_steps


def build_data(settings: Settings, images: ImageTable) -> DataModule:
    """Build the loaders of a table; with ``training.frozen`` they load head inputs, once it is known where from."""
    kind = FrozenDataModule if settings.training.frozen else DataModule
    return kind(
        images,
        train_transform=build(settings.transform.train),
        sampler=build(settings.sampler),
        validated_on="test" if builders.choose_selection(settings, images) == "test" else "val",
        seed=settings.seed,
        **_build_loader_arguments(settings),
    )


def build_evaluation_data(settings: Settings, images: ImageTable) -> EvaluationData:
    """Build the loader of a table's test, which takes no training images and no sampler."""
    return EvaluationData(images, **_build_loader_arguments(settings))


def _build_loader_arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments that the loaders of a training and of a test have in common."""
    return {
        "test_transform": build(settings.transform.test),
        "crops_transform": builders.build_crops_transform(settings),
        "settings": choose_loader_settings(vars(settings.data), settings.trainer),
        "cache": builders.find_cache_folder(settings),
    }


def build_frozen_weights(settings: Settings, embedding_model: AnyModel) -> FrozenWeights | None:
    """Find the frozen weights of a model as it was built, which a checkpoint needn't hold; None without ``adapter``."""
    if settings.adapter is None:
        return None
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(settings.seed + 1)
        return FrozenWeights(embedding_model, builders.build_model(settings))


def build_embedder(settings: Settings, embedding_model: AnyModel) -> ModelEmbedder:
    """Build the module that embeds a split with a model, without a loss or an optimizer."""
    kind = RecurrentEmbedder if isinstance(embedding_model, RecurrentModel) else ModelEmbedder
    return kind(embedding_model, select_joint(builders.list_tested_heads(settings)))


def build_learner(
    settings: Settings, images: DataModule, embedding_model: AnyModel, add_terms: Callable[..., Any] = dict
) -> MetricLearner:
    """The model with its losses, optimizer and schedule; with ``training.frozen`` its backbone is frozen."""
    if settings.training.frozen:
        embedding_model.backbone.requires_grad_(False).eval()
    labels, embed_dims = images.train_table.labels, embedding_model.embed_dims
    head_losses: dict[str, nn.Module] = add_terms(builders.build_losses(settings, embed_dims, labels))
    sampler, first_loss = images.sampler, next(iter(head_losses.values()))
    check_pairs(first_loss, getattr(sampler, "images_per_class", 2), getattr(sampler, "classes_per_batch", 2))
    if settings.scheduler.loss:
        LossSchedule(**vars(settings.scheduler.loss)).check_losses(head_losses.values())
    if settings.training.proxies == "class_means":
        check_class_means(head_losses, count_classes(labels), embed_dims)
    check_chunk_size(embedding_model, settings.training.gradient_cache)
    if settings.trainer.sync_batchnorm:
        check_synchronized(embedding_model)
    names = builders.list_tested_heads(settings)
    validated = images.table.select_evaluated(images.validated_on)
    monitor, tie_breaker = settings.checkpoints.monitor, settings.checkpoints.tie_breaker
    monitored = [name for name in (monitor, tie_breaker) if name]
    metrics = builders.build_metric_config(settings, validated)
    further = make_further_config(settings.evaluation.validation_metrics, metrics, monitored, validated)
    pace = build_pace(settings, len(images.sampler))
    plain_kind: Any = FrozenLearner if settings.training.frozen else MetricLearner
    kind: type[MetricLearner] = RecurrentLearner if isinstance(embedding_model, RecurrentModel) else plain_kind
    return kind(
        embedding_model,
        head_losses,
        optimizer=build(settings.optimizer),
        schedule=build_schedule(settings, pace),
        evaluate=Evaluator(validated, make_validation_config(metrics, *monitored)),
        evaluate_further=Evaluator(validated, further) if further.selected else None,
        validated_on=images.validated_on,
        monitor=monitor,
        head_sets=select_joint([*names, MetricName.parse(monitor).heads]),
        head_choice=build_head_choice(settings),
        pace=pace,
        gradient_cache=settings.training.gradient_cache,
        shard_loss=settings.training.shard_loss,
        compiled=parse_compile(settings.training.compile),
    )


def build_head_choice(settings: Settings) -> HeadChoice | None:
    """Build the choice of ``heads.choose``; None if there is nothing to choose, or no validation split to do it on."""
    chooses = settings.heads.choose and settings.evaluation.selection == "val"
    if not chooses or len(settings.model.heads) < 2:
        return None
    checkpoints = settings.checkpoints
    return HeadChoice([*settings.model.heads], checkpoints.monitor, checkpoints.mode, checkpoints.tie_breaker)


def build_pace(settings: Settings, batches_per_epoch: int) -> SchedulePace:
    """Build the counter of the intervals of ``scheduler``."""
    return SchedulePace(
        settings.scheduler.interval,
        settings.scheduler.warmup_steps,
        batches_per_step=settings.trainer.accumulate_grad_batches,
        batches_per_epoch=batches_per_epoch,
    )


def build_schedule(settings: Settings, pace: SchedulePace) -> Any:
    """Build the function that makes the schedule of the learning rates from an optimizer; None without a schedule.

    Each ``???`` in ``scheduler.schedule`` is the number of intervals from the warm-up to the run's end.
    """
    if settings.scheduler.schedule is None:
        return None
    values: Any = OmegaConf.to_container(settings.scheduler.schedule, resolve=True)
    if "???" in values.values():
        length = pace.schedule_length(settings.trainer.max_steps)
        values = {key: length if value == "???" else value for key, value in values.items()}
    return build_values(values, "scheduler.schedule")


def check_optimizer(learner: MetricLearner) -> None:
    """Make the optimizer and its schedule once, and move that by a step: what they refuse is told before a training."""
    optimizer = learner.make_optimizer()
    if learner.schedule is None:
        return
    try:
        with warnings.catch_warnings():  # PyTorch warns that the optimizer took no step
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler")
            learner.schedule(optimizer).step()
    except (ValueError, TypeError, ArithmeticError) as error:
        raise InputError(f"scheduler.schedule: {' '.join(str(error).split())}") from error


def build_callbacks(settings: Settings, images: DataModule, learner: MetricLearner) -> list[Callback]:
    """Build the callbacks of a training, in the order in which Lightning calls them; it calls checkpoints last."""
    training, checkpoints = settings.training, settings.checkpoints
    users: list[Any] = [build(entry, _convert_="all") for entry in settings.trainer.callbacks or ()]
    callbacks: list[Callback] = [StepSeed(settings.seed)]
    if settings.scheduler.loss:
        callbacks.append(LossSchedule(**vars(settings.scheduler.loss)))
    if settings.heads.initial is not None and not training.init:  # else they begin as in the checkpoint
        callbacks.append(PrincipalHeads(WHITENING[settings.heads.initial]))
    if find_bank_users(images.sampler, learner):
        callbacks.append(EmbeddingBankUpdates(training.bank_every_n_steps))
    if training.proxies is not None:
        callbacks.append(ProxiesAtClassMeans())
    if training.ema is not None:
        callbacks.append(Averaging(training.ema))
    if checkpoints.beginning:
        callbacks.append(FirstValidation())
    if checkpoints.interpolation:
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


def _shows_progress(settings: Settings) -> bool:
    return settings.trainer.enable_progress_bar is not False


def build_trainer(settings: Settings, *, callbacks: Sequence[Callback] = (), **changes: Any) -> Trainer:
    """Build Lightning's Trainer.

    A value below ``trainer`` that is null stands for Lightning's default, and ``changes`` replace such values.
    """
    # part of trainer.deterministic, for code that reads memory it has not written: 10 % of a step for nothing
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    check_arguments(settings.trainer)
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
        loggers.append(build(logger))
    return loggers


def build_loggers(stage: Stage) -> list[Any]:
    """Make the loggers beside ``metrics.csv``, and log the configuration."""
    loggers = make_loggers(stage.settings)
    values: Any = OmegaConf.to_container(stage.config, resolve=True)
    for logger in loggers:
        logger.log_hyperparams(without_run_keys(values))
    return loggers


def choose_deterministic(trainer: Mapping[str, Any]) -> Any:
    """Return ``trainer.deterministic``; null means "warn" on a CPU, where it costs nothing, and false on a GPU."""
    if trainer["deterministic"] is not None:
        return trainer["deterministic"]
    return False if uses_cuda(trainer["accelerator"]) else "warn"
