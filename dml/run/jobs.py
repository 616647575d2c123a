"""What ``train.py`` and ``evaluate.py`` do."""

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning import Callback, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities import rank_zero_only

from dml.models.embedding import EmbeddingModel
from dml.ops.errors import InputError
from dml.run import build, outcome, present
from dml.run.stored import as_stored, check_unchanged, checkpoint, of_checkpoint, of_run
from dml.training.checkpoints import AtomicCheckpointIO, LastCheckpoint, load_model
from dml.training.data import DataModule
from dml.training.history import History
from dml.training.module import MetricLearner
from dml.training.progress import Progress
from dml.training.schedules import LossSchedule
from dml.training.seeding import StepSeed

Metrics = dict[str, Any]


def train(config: DictConfig, folder: Path, overrides: list[str]) -> Metrics:
    """Trains, chooses a checkpoint on the validation split and tests it once -> the contents of metrics.json."""
    last, best = checkpoint(folder, "last"), checkpoint(folder, "best")
    if config.resume:
        # Lightning starts the other processes without the overrides
        rank_zero_only(check_unchanged)(config, overrides, of_run(folder))
    elif last.exists():
        raise InputError(f"hydra.run.dir={folder}: holds a run already; resume={folder} goes on with it")
    stored = {"overrides": overrides, "config": as_stored(config)}

    images, model, learner = _parts(config)
    present.setup(config, images, model, folder)

    before = outcome.raw(config, images, model) if config.evaluation.raw else {}
    step = _resumed_step(model, last) if config.resume else 0
    trainer = build.trainer(
        config,
        default_root_dir=folder,
        logger=[History(folder / "metrics.csv", step), *build.loggers(config)],
        callbacks=_callbacks(config, folder, stored, images.validated_on),
        plugins=[AtomicCheckpointIO()],
    )
    started = time.perf_counter()
    trainer.fit(learner, datamodule=images, ckpt_path=last if step else None)
    present.training(trainer, images, time.perf_counter() - started)

    selection = build.selection(config, images.table)
    step = load_model(model, best if selection != "last" and best.exists() else last)
    described = before | _place(images, step) | {"selection": selection}
    return outcome.test(config, trainer, learner, images, folder, split="test", described=described)


def evaluate(config: DictConfig, folder: Path, overrides: list[str]) -> Metrics:
    """Tests a checkpoint again -> the contents of metrics.json."""
    path = Path(config.checkpoint)
    check_unchanged(config, overrides, of_checkpoint(path), parts=("dataset", "transform", "model", "evaluation"))
    images, model, learner = _parts(config)
    step = load_model(model, path)
    trainer = build.trainer(config, default_root_dir=folder, logger=False, enable_checkpointing=False)
    return outcome.test(config, trainer, learner, images, folder, split=config.split, described=_place(images, step))


def _place(images: DataModule, step: int) -> Metrics:
    return {"epoch": step // len(images.sampler), "step": step}


def _parts(config: DictConfig) -> tuple[DataModule, EmbeddingModel, MetricLearner]:
    """Data, model and learner, the random weights a function of the seed; epochs become steps."""
    seed_everything(config.seed, verbose=False)
    images = build.data(config, build.table(config))
    build.count_in_steps(config, len(images.sampler))
    model = build.model(config)
    return images, model, build.learner(config, images, model)


def _callbacks(config: DictConfig, folder: Path, stored: dict[str, Any], validated_on: str) -> list[Callback]:
    best = checkpoint(folder, "best")
    keeps_best = ModelCheckpoint(
        best.parent,
        filename=best.stem,
        monitor=f"{validated_on}/{config.checkpoints.monitor}",
        mode=config.checkpoints.mode,
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )
    keeps_last = LastCheckpoint(checkpoint(folder, "last"), config.checkpoints.every_n_steps, stored)
    moving = [LossSchedule(**config.scheduler.loss)] if config.scheduler.loss else []
    return [StepSeed(config.seed), *moving, Progress(), keeps_best, keeps_last]


def _resumed_step(model: EmbeddingModel, last: Path) -> int:
    """The step that a run goes on from; 0 if it died before its first checkpoint."""
    return load_model(model, last) if last.exists() else 0
