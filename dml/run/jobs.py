"""What ``train.py`` does."""

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning import Callback, Trainer, seed_everything
from pytorch_lightning.utilities import rank_zero_only

from dml.data.table import ImageTable
from dml.ops.errors import InputError
from dml.ops.paths import expand_home
from dml.ops.run_folder import CONFIGURATION, RunFolder, configuration_id
from dml.run import build, length, loop, outcome, present
from dml.run.evaluation_checks import check_evaluation
from dml.run.loggers import log_outcome
from dml.run.pruning import pruning
from dml.run.stages import Stage
from dml.run.stages import stages as all_stages
from dml.run.stored import as_stored, check_unchanged, of_run, write_configuration
from dml.training.averaging import Averaging
from dml.training.checkpoints import (
    AtomicCheckpointIO,
    BestCheckpoint,
    LastCheckpoint,
    Reached,
    RunEnder,
    begin_from,
    load_model,
)
from dml.training.data import DataModule
from dml.training.embedding import AnyModel
from dml.training.history import History
from dml.training.module import MetricLearner
from dml.training.progress import progress
from dml.training.proxies import ProxiesAtClassMeans
from dml.training.schedules import LossSchedule
from dml.training.seeding import StepSeed
from dml.training.storing import StoredEmbeddings

Metrics = dict[str, Any]


def train(config: DictConfig, folder: RunFolder, overrides: list[str]) -> Metrics:
    """Trains, chooses a checkpoint on the validation split and tests it once -> the contents of metrics.json."""
    last = folder.last_checkpoint
    if config.resume:
        # Lightning starts the other processes without the overrides
        rank_zero_only(check_unchanged)(config, overrides, of_run(folder))
    elif last.exists():
        raise InputError(f"hydra.run.dir={folder.path}: holds a run already; resume={folder.path} goes on with it")
    run: dict[str, Any] = {"overrides": overrides, "config": as_stored(config)}
    composed = config.copy()  # what follows turns epochs into steps

    table, stages = build.table(config), all_stages(config)
    build.other_labels(config, table)  # what they lack is told before the training
    for own in stages:
        check_evaluation(own.config, table)
    images, model, learner = _parts(stages[0].config, table)
    reached = Reached.of(last) if last.exists() else None
    rank_zero_only(write_configuration)(folder, composed, overrides)
    before = outcome.raw(stages[0].config, images, model, folder) if config.evaluation.raw else {}
    names = [own.name for own in stages]
    pruned = False
    for own in stages[names.index(reached.stage) if reached else 0 :]:
        if own is not stages[0]:
            images, model, learner = _parts(own.config, table)
        reached = _start(own, model, last, reached)
        if own is stages[-1] and own.config.evaluation.fixed_neighbors:
            outcome.fix_neighbors(own.config, learner, images, folder.fixed_neighbors_file)
        present.setup(own.config, images, model, folder.path, own.name)
        trainer = _fit(own, images, learner, folder, run, reached)
        reached = Reached.of(last)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if pruned := any(isinstance(callback, RunEnder) and callback.has_ended_run for callback in callbacks):
            break

    assert reached is not None  # every run has a stage
    tested, tested_at, selection = _choose_checkpoint(own, folder, table, reached)
    load_model(model, tested)
    described = before | tested_at.described(_epoch(own.config, images)) | {"selection": selection}
    described[CONFIGURATION] = configuration_id(run["config"])
    if pruned:
        described["pruned"] = True
    fixed = folder.fixed_neighbors_file
    metrics = outcome.test(own.config, trainer, learner, images, folder, split="test", described=described, fixed=fixed)
    log_outcome(trainer.loggers, metrics, folder)
    return metrics


def _choose_checkpoint(own: Stage, folder: RunFolder, table: ImageTable, reached: Reached) -> tuple[Path, Reached, str]:
    """The checkpoint that a run tests, where it was written, and what selected it.

    A training that never validated has no best checkpoint, or one of another stage: the last one is tested then.
    """
    at_best = Reached.of(folder.best_checkpoint) if folder.best_checkpoint.exists() else None
    if at_best is not None and at_best.stage == own.name:
        selection = build.selection(own.config, table)
        if selection != "last":
            return folder.best_checkpoint, at_best, selection
    return folder.last_checkpoint, reached, "last"


def _start(own: Stage, model: AnyModel, last: Path, reached: Reached | None) -> Reached:
    """Gives the model its first weights -> where the stage begins or goes on."""
    if reached is not None and reached.stage == own.name:
        load_model(model, last)
        return reached
    if before := last if reached is not None else own.config.init and expand_home(own.config.init):
        begin_from(model, before)
    return Reached(own.name, reached.all_steps if reached else 0, 0)


def _fit(
    own: Stage, images: DataModule, learner: MetricLearner, folder: RunFolder, run: dict[str, Any], reached: Reached
) -> Trainer:
    """A stage's training, from where it has got to."""
    trainer = loop.trainer(
        own.config,
        default_root_dir=folder.path,
        logger=[History(folder.history_file, reached.all_steps), *loop.loggers(own.config)],
        callbacks=_callbacks(own.config, folder, run | reached.place | _epoch(own.config, images), images.validated_on),
        plugins=[AtomicCheckpointIO()],
    )
    # what loggers count from; Lightning has no other way to say it, and restores it itself when a stage is resumed
    trainer.fit_loop.epoch_loop._batches_that_stepped = reached.first_step
    started = time.perf_counter()
    trainer.fit(learner, datamodule=images, ckpt_path=folder.last_checkpoint if reached.step else None)
    present.training(trainer, images, time.perf_counter() - started)
    return trainer


def _epoch(config: DictConfig, images: DataModule) -> dict[str, int]:
    """The length of an epoch, which a checkpoint tells to whoever tests it without a sampler."""
    return {"batches_per_epoch": len(images.sampler), "batches_per_step": config.trainer.accumulate_grad_batches}


def _parts(config: DictConfig, table: ImageTable) -> tuple[DataModule, AnyModel, MetricLearner]:
    """Data, model and learner, the random weights a function of the seed; epochs become steps."""
    seed_everything(config.seed, verbose=False)
    images = build.data(config, table)
    length.count_in_steps(config, len(images.sampler))
    model = build.model(config)
    return images, model, build.learner(config, images, model)


def _callbacks(config: DictConfig, folder: RunFolder, stored: dict[str, Any], validated_on: str) -> list[Callback]:
    best = folder.best_checkpoint
    keeps_best = BestCheckpoint(
        best.parent,
        filename=best.stem,
        monitor=f"{validated_on}/{config.checkpoints.monitor}",
        mode=config.checkpoints.mode,
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )
    keeps_last = LastCheckpoint(folder.last_checkpoint, config.checkpoints.every_n_steps, stored)
    moving = [LossSchedule(**config.scheduler.loss)] if config.scheduler.loss else []
    stores = StoredEmbeddings(config.stored.every_n_steps)
    pruned = pruning(config, folder)
    averaging = [Averaging(config.ema)] if config.ema is not None else []
    placed = [ProxiesAtClassMeans()] if config.proxies else []
    return [StepSeed(config.seed), *moving, stores, *placed, *averaging, *pruned, progress(), keeps_best, keeps_last]
