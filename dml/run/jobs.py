"""What ``train.py`` and ``evaluate.py`` do."""

import json
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning import Callback, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities import rank_zero_only

from dml.models.embedding import EmbeddingModel
from dml.ops.errors import InputError
from dml.ops.files import replacing
from dml.run import build, present
from dml.run.stored import as_stored, check_unchanged, checkpoint, of_checkpoint, of_run
from dml.training.checkpoints import AtomicCheckpointIO, LastCheckpoint, load_model
from dml.training.data import DataModule
from dml.training.embedding import RawFeatures, evaluate_heads
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

    raw = _raw(config, images, model) if config.evaluation.raw else {}
    step = _resumed_step(model, last) if config.resume else 0
    trainer = build.trainer(
        config,
        default_root_dir=folder,
        logger=[History(folder / "metrics.csv", step), *build.loggers(config)],
        callbacks=_callbacks(config, folder, stored),
        plugins=[AtomicCheckpointIO()],
    )
    started = time.perf_counter()
    trainer.fit(learner, datamodule=images, ckpt_path=last if step else None)
    present.training(trainer, images, time.perf_counter() - started)

    step = load_model(model, best if best.exists() else last)
    metrics = raw | _test(config, trainer, learner, images, folder, "test")
    return _finish(metrics, images, model, folder, step=step, split="test")


def evaluate(config: DictConfig, folder: Path, overrides: list[str]) -> Metrics:
    """Tests a checkpoint again -> the contents of metrics.json."""
    path = Path(config.checkpoint)
    check_unchanged(config, overrides, of_checkpoint(path), parts=("dataset", "transform", "model", "evaluation"))
    images, model, learner = _parts(config)
    step = load_model(model, path)
    trainer = build.trainer(config, default_root_dir=folder, logger=False, enable_checkpointing=False)
    metrics = _test(config, trainer, learner, images, folder, config.split)
    return _finish(metrics, images, model, folder, step=step, split=config.split)


def _parts(config: DictConfig) -> tuple[DataModule, EmbeddingModel, MetricLearner]:
    """Data, model and learner, the random weights a function of the seed; epochs become steps."""
    seed_everything(config.seed, verbose=False)
    images = build.data(config, build.table(config))
    build.count_in_steps(config, len(images.sampler))
    model = build.model(config)
    return images, model, build.learner(config, images, model)


def _callbacks(config: DictConfig, folder: Path, stored: dict[str, Any]) -> list[Callback]:
    best = checkpoint(folder, "best")
    keeps_best = ModelCheckpoint(
        best.parent,
        filename=best.stem,
        monitor=config.checkpoints.monitor,
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


def _raw(config: DictConfig, images: DataModule, model: EmbeddingModel) -> Metrics:
    """The test metrics of the backbone's own features, before any training."""
    trainer = build.trainer(config, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    embedder = RawFeatures(model)
    trainer.test(embedder, images, verbose=False)
    metrics = build.metrics(config)(embedder.embedded.embeddings["raw"], embedder.embedded.labels)
    present.before(metrics)
    return {f"raw/{name}": value for name, value in metrics.items()}


def _test(
    config: DictConfig, trainer: Trainer, learner: MetricLearner, images: DataModule, folder: Path, split: str
) -> Metrics:
    """The metrics of a split; writes its retrieval sheet."""
    trainer.test(learner, images.pass_over(split), verbose=False)
    embedded = learner.embedded
    metrics: Metrics = evaluate_heads(embedded, build.metrics(config), heads=config.evaluation.heads)
    skipped = len(images.table.rows(split)) - len(embedded.rows)
    if skipped:
        metrics["images_skipped"] = skipped
    if config.evaluation.sheet and trainer.is_global_zero:
        present.sheet(embedded, images, split, folder / "retrieval.png", **config.evaluation.sheet)
    return metrics


def _finish(
    metrics: Metrics, images: DataModule, model: EmbeddingModel, folder: Path, *, step: int, split: str
) -> Metrics:
    """Says which step and split the metrics are of, writes them and shows them."""
    metrics |= {"epoch": step // len(images.sampler), "step": step, "split": split}
    _write(folder, metrics)
    present.result(metrics, images, model, folder)
    return metrics


@rank_zero_only
def _write(folder: Path, metrics: Metrics) -> None:
    with replacing(folder / "metrics.json") as partial:
        partial.write_text(json.dumps(metrics, indent=2) + "\n")
