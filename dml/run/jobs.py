"""The job of ``train.py``: the stages of a run, and the test of the checkpoint that they chose."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from omegaconf import DictConfig
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.utilities import rank_zero_only

from dml.data.overview import count_queries_in_gallery, summarize_data
from dml.data.splits import describe_shared_classes, describe_splits
from dml.data.table import ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.monitor import describe_clustering
from dml.evaluation.names import name_dataset
from dml.losses.compose import WeightedSum
from dml.losses.memory import CrossBatchMemory
from dml.models.embedding import EmbeddingModel
from dml.models.recurrent import AnyModel
from dml.report.console import QUICK
from dml.run import builders, loop
from dml.run.builders import choose_selection, choose_tested_split
from dml.run.checks import check_evaluation, check_share
from dml.run.final_test import run_test
from dml.run.interpolation import choose_between_first_and_last
from dml.run.other_models import add_teacher, load_beginning
from dml.run.settings import Settings, read_settings
from dml.run.stored import (
    Stage,
    StoredRun,
    check_new_values,
    check_trained,
    find_stage,
    list_stages,
    plain_config,
    read_stored_run,
    write_configuration,
)
from dml.run.untrained_model import FeatureSource, build_feature_source, evaluate_raw_features, store_fixed_neighbors
from dml.runtime import signals
from dml.runtime.configuration import key_of
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.run_folder import CONFIGURATION, RunFolder, configuration_id
from dml.runtime.text import console, in_markup, warn
from dml.training.callbacks.checkpoints import AtomicCheckpointIO
from dml.training.checkpoints import FrozenWeights, TrainingProgress, load_model
from dml.training.data import DataModule
from dml.training.frozen import FrozenDataModule
from dml.training.hardware import parse_compile
from dml.training.loggers import History
from dml.training.module import MetricLearner
from dml.training.trainer_arguments import describe_late_milestones

Metrics = dict[str, Any]

FEW_CLASSES = 20
"""The number of classes below which a run says what each of them is for."""


@dataclass(frozen=True)
class StageParts:
    """The objects that train a stage of a run.

    Args:
        stage: name and configuration of the stage; epochs have become steps in it.
        settings: settings of the stage.
        images: images of the training, of a validation and of the test.
        model: network with its heads.
        learner: the model with its losses and its optimizer.
        source: source of the features that a training of the heads alone takes; None for any other training.
        frozen: the frozen weights that the checkpoints of the stage needn't hold; None if they hold all weights.
    """

    stage: Stage
    settings: Settings
    images: DataModule
    model: AnyModel
    learner: MetricLearner
    source: FeatureSource | None
    frozen: FrozenWeights | None = None


def train(config: DictConfig, folder: RunFolder, overrides: list[str]) -> Metrics:
    """Train, choose a checkpoint on the validation split and test it once -> the contents of metrics.json."""
    settings, values = read_settings(config, Settings), plain_config(config)
    stored = _check_folder(settings, values, folder)
    table = builders.build_table(settings)
    splits = summarize_data(table, settings.dataset.root)
    if stored is not None and not settings.accept_changed_data and (before := folder.splits()) is not None:
        rank_zero_only(builders.check_same_data)(f"resume={folder.path}", before, splits)
    rank_zero_only(_print_few_classes)(settings, table)
    stages = list_stages(config.copy())  # building a stage turns its epochs into steps
    for stage in stages if settings.quick else ():
        loop.shorten(stage, {*map(key_of, overrides)})
    split = _check_data(stages, table)
    parts = _build_parts(stages[0], table)
    _try_stages(parts, stages[1:], table)
    progress = None if stored is None else _read_progress(values, folder, table, stages, stored)
    rank_zero_only(folder.write_splits)(splits)
    rank_zero_only(write_configuration)(folder, config, overrides, began_in=folder)
    raw: Metrics = {}
    if settings.evaluation.raw:
        raw = evaluate_raw_features(parts.stage, parts.images, parts.model, folder, parts.source)
    run: dict[str, Any] = {"overrides": overrides, "config": values}
    begun = 0 if progress is None else stages.index(find_stage(stages, progress.stage))
    for stage in stages[begun:]:
        parts = parts if stage is stages[0] else _build_parts(stage, table)
        progress = _load_weights(parts, folder.last_checkpoint, progress)
        _use_first_weights(parts, folder, is_last=stage is stages[-1])
        print_setup(parts, folder.path)
        trainer = _fit(parts, folder, run, progress)
        progress = TrainingProgress.read(folder.last_checkpoint)
    selection = choose_selection(settings, table)
    mixes = bool(parts.settings.checkpoints.interpolation) and folder.best_checkpoint.exists()
    if len(stages) == 1 and selection == "val" and mixes:
        choose_between_first_and_last(parts.settings, trainer, parts.learner, parts.images, parts.frozen)
    description = raw | _load_chosen(parts, folder, selection) | {CONFIGURATION: configuration_id(values)}
    if trainer.global_step < trainer.max_steps:  # such as for checkpoints.patience
        description["ended_early"] = f"at step {trainer.global_step:,} of {trainer.max_steps:,}"
    return run_test(
        parts.stage,
        trainer,
        parts.learner,
        parts.images,
        folder,
        split=split,
        description=description,
        run=folder,
    )


def _check_folder(settings: Settings, values: Mapping[str, Any], folder: RunFolder) -> StoredRun | None:
    """Return what the run that is resumed has stored; for a new run make sure that nothing is in the way."""
    init = settings.training.init
    if settings.resume:
        stored = read_stored_run(folder)
        check_new_values(values, folder, stored)
        return stored
    if init and not expand_home(init).is_file():
        raise InputError(f"training.init={init}: no such file; a checkpoint of another run, such as its best.ckpt")
    if folder.last_checkpoint.exists() or folder.is_finished:
        raise InputError(
            f"hydra.run.dir={folder.path}: holds a run already; {shlex.quote(f'resume={folder.path}')} goes on with "
            "it, and another folder takes a new one"
        )
    return None


def _check_data(stages: list[Stage], table: ImageTable) -> str:
    """Make sure that all stages can be evaluated on the data, and that it can be read -> the split of the test."""
    for stage in stages:
        check_evaluation(stage.settings, table)
    settings = stages[-1].settings
    builders.read_other_labels(settings, table)
    split = choose_tested_split(settings, table)
    check_share("limit_test_batches", settings, table.select_evaluated(split))
    builders.check_readable(settings, table)
    return split


def _build_parts(stage: Stage, table: ImageTable) -> StageParts:
    """Build the objects of a stage, its random weights a function of the seed; epochs become steps."""
    seed_everything(stage.settings.seed, verbose=False)
    images = loop.build_data(stage.settings, table)
    loop.count_in_steps(stage, len(images.sampler))
    if not len(table.select_evaluated(images.validated_on)):
        stage.config.trainer.val_check_interval = None
    settings = stage.settings
    model = builders.build_model(settings)
    frozen = loop.build_frozen_weights(settings, model)
    add_terms = partial(add_teacher, settings, images.train_table, model.embed_dims)
    learner = loop.build_learner(settings, images, model, add_terms)
    source: FeatureSource | None = None
    if isinstance(model, EmbeddingModel) and settings.training.frozen:
        source = build_feature_source(settings, model)
    return StageParts(stage, settings, images, model, learner, source, frozen)


def _try_stages(first: StageParts, later_stages: list[Stage], table: ImageTable) -> None:
    """Build callbacks and optimizer of the first stage, and all of the later stages once, to tell a mistake at once."""
    loop.build_callbacks(first.settings, first.images, first.learner)
    loop.check_optimizer(first.learner)
    for stage in later_stages:
        try:
            # building turns epochs into steps
            parts = _build_parts(Stage(stage.name, stage.config.copy()), table)
            callbacks = loop.build_callbacks(parts.settings, parts.images, parts.learner)
            loop.build_trainer(parts.settings, callbacks=callbacks, logger=False)
            loop.check_optimizer(parts.learner)
        except (InputError, InstantiationException) as error:
            reason = error.__cause__ if isinstance(error, InstantiationException) else error
            if not isinstance(reason, InputError):
                raise
            raise InputError(f"stages.{stage.name}: {reason}") from error


def _read_progress(
    values: Mapping[str, Any], folder: RunFolder, table: ImageTable, stages: list[Stage], stored: StoredRun
) -> TrainingProgress | None:
    """Return how far a resumed run has got, None if it has no checkpoint yet."""
    if not folder.last_checkpoint.exists():
        return None
    if folder.best_checkpoint.exists() and choose_selection(stages[-1].settings, table) != "last":
        TrainingProgress.read(folder.best_checkpoint)
    progress = TrainingProgress.read(folder.last_checkpoint)
    find_stage(stages, progress.stage)
    check_trained(values, stored, stages[-1].settings.trainer.max_steps, progress)
    return progress


def _load_weights(parts: StageParts, last: Path, progress: TrainingProgress | None) -> TrainingProgress:
    """Load the weights that a stage begins with, or goes on with -> where that is in the run."""
    name, model = parts.stage.name, parts.model
    if progress is not None and progress.stage == name:
        load_model(model, last)
        return progress
    init = parts.settings.training.init
    if initial := last if progress is not None else init and expand_home(init):
        load_beginning(parts.settings, model, initial)
    if progress is None:
        return TrainingProgress(name, 0, 0)
    return TrainingProgress(name, progress.total_steps, 0, progress.history_checksum)


def _use_first_weights(parts: StageParts, folder: RunFolder, *, is_last: bool) -> None:
    """Compute what a stage takes of the weights that it begins with: features of frozen ones, and fixed neighbors."""
    if parts.source is not None:
        assert isinstance(parts.images, FrozenDataModule)
        parts.images.load_inputs = parts.source.load_inputs
        parts.source.load_inputs(parts.images.train_table)  # they are stored before the training asks for them
    if is_last and (count := parts.settings.evaluation.fixed_neighbors):
        store_fixed_neighbors(parts.settings, parts.learner, parts.images, folder.fixed_neighbors_file, count)


def _fit(parts: StageParts, folder: RunFolder, run: dict[str, Any], progress: TrainingProgress) -> Trainer:
    """Train a stage from where it has got to."""
    settings, images = parts.settings, parts.images
    place = {"stage": progress.stage, "first_step": progress.first_step}
    batches_per_step = settings.trainer.accumulate_grad_batches
    length = {"batches_per_epoch": len(images.sampler), "batches_per_step": batches_per_step}
    parts.learner.run_description = run | place | length
    trainer = loop.build_trainer(
        settings,
        default_root_dir=folder.path,
        logger=[
            History(folder.history_file, progress.total_steps, progress.history_checksum),
            *loop.build_loggers(parts.stage),
        ],
        callbacks=loop.build_callbacks(settings, images, parts.learner),
        plugins=[AtomicCheckpointIO(parts.model, parts.frozen)],
    )
    # what loggers count from; Lightning has no other way to say it, and restores it itself when a stage is resumed
    trainer.fit_loop.epoch_loop._batches_that_stepped = progress.first_step
    started = time.perf_counter()
    with signals.deferring("stopping after this step or validation"):
        trainer.fit(parts.learner, datamodule=images, ckpt_path=folder.last_checkpoint if progress.step else None)
    if trainer.is_global_zero:
        waited = 1000 * images.stream.wait_seconds / max(1, images.stream.waits)
        console.print(
            f"[bold]trained[/]  to step {trainer.global_step:,} in {time.perf_counter() - started:,.0f} s, of which a "
            f"step waited {waited:.1f} ms for its images"
        )
    return trainer


def _load_chosen(parts: StageParts, folder: RunFolder, selection: str) -> Metrics:
    """Load the checkpoint that the run tests -> what describes it in metrics.json.

    A training that never validated has no best checkpoint, or one of another stage: the last one is tested then.
    """
    checkpoint = folder.best_checkpoint
    progress = TrainingProgress.read(checkpoint) if selection != "last" and checkpoint.exists() else None
    if progress is None or progress.stage != parts.stage.name:
        selection, checkpoint = "last", folder.last_checkpoint
        progress = TrainingProgress.read(checkpoint)
    load_model(parts.model, checkpoint)
    return progress.describe() | {"selection": selection}


def _print_few_classes(settings: Settings, table: ImageTable) -> None:
    """Print how many classes each split has if they are few, and the option that trains on all of them."""
    counts = {split: numbers[table.levels[0]] for split, numbers in table.counts().items()}
    if sum(counts.values()) >= FEW_CLASSES:
        return
    uses = {"train": "are trained", "val": "choose the checkpoint", "test": "are the test"}
    line = ", ".join(f"{counts[split]} {use}" for split, use in uses.items() if counts.get(split))
    draws_test = (settings.dataset.reader or {}).get("test_fraction") and "test" in counts
    remedy = "; dataset.reader.test_fraction=0 trains on those of the test too" if draws_test else ""
    console.print(f"[bold]classes[/]  {in_markup(line)}{remedy}")


@rank_zero_only
def print_setup(parts: StageParts, folder: Path) -> None:
    """Print what is going to be trained, on which images, and the folder of the results."""
    settings, images, learner, model = parts.settings, parts.images, parts.learner, parts.model
    if parts.stage.name:
        console.print(f"[bold]stage[/]    {in_markup(parts.stage.name)}")
    if settings.quick:
        console.print(f"[bold red]quick[/]    {in_markup(QUICK)}")
    heads = " + ".join(f"{name} {size}" for name, size in model.embed_dims.items())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parameters = sum(p.numel() for p in model.parameters())
    data = f"{name_dataset({'dataset': vars(settings.dataset)})}: {describe_splits(images.table)}"
    console.print(f"[bold]data[/]     {in_markup(data)}")
    if shared := describe_shared_classes(images.table):
        console.print(f"[bold red]val[/]      {in_markup(shared)}")
    in_gallery, queries = count_queries_in_gallery(images.table)
    if queries and builders.compares_contents(settings):
        console.print(
            f"[bold]queries[/]  {in_gallery:,} of {queries:,} are in their gallery as files of the same content, which "
            "are excluded from their rankings"
        )
    console.print(
        f"[bold]model[/]    {trained:,} of {parameters:,} parameters ({trained / parameters:.1%}) are trained; "
        f"heads {in_markup(heads)}"
    )
    if model.backbone.has_untrained_norms:
        warn("random weights with frozen batch normalization; model.backbone.weights=FILE begins with trained ones")
    loss: Any = next(iter(learner.losses.values()))
    terms = loss.terms.values() if isinstance(loss, WeightedSum) else [loss]
    names = " + ".join(type(term).__name__ for term in terms)
    console.print(f"[bold]loss[/]     {in_markup(names)}, {settings.trainer.max_steps:,} steps")
    if parse_compile(settings.training.compile) is not None:
        console.print("[bold]compile[/]  the first step compiles the network, which can take minutes")
    further = learner.evaluate_further if settings.trainer.val_check_interval else None
    if isinstance(further, Evaluator) and (line := describe_clustering(further, sum(model.embed_dims.values()))):
        console.print(f"[bold]k-means[/]  {in_markup(line)}")
    pace = loop.build_pace(settings, len(images.sampler))
    if late := describe_late_milestones(settings.scheduler.schedule or {}, pace, settings.trainer.max_steps):
        console.print(f"[bold red]schedule[/] {in_markup(late)}")
    starts = [part.start for part in learner.losses.modules() if isinstance(part, CrossBatchMemory)]
    if starts and starts[0] >= settings.trainer.max_steps * settings.trainer.accumulate_grad_batches:
        line = f"loss.start={starts[0]}: the run ends before the memory is used"
        console.print(f"[bold red]memory[/]   {in_markup(line)}")
    console.print(f"[bold]folder[/]   {in_markup(folder)}")
