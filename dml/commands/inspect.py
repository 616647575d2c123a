"""The job of ``dml inspect``: show what a data set holds, and what networks find in it before any training.

It is above `dml.run`, beside the other commands that compose configurations of their own: one for each backbone.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException, MissingConfigException
from numpy.typing import NDArray
from omegaconf import DictConfig
from torch import Tensor

from dml.commands.checked_images import (
    build_seeded_model,
    check_and_summarize,
    read_part,
    set_for_readable,
    take_readable,
)
from dml.commands.error_lines import explain
from dml.data.copies import describe_copies
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.prepared_files import hold_preparation_lock
from dml.data.table import TRAINING_SPLITS, ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.items import check_queries, is_of_one_class
from dml.evaluation.raw_features import (
    Metrics,
    describe_best,
    evaluate_projections,
    hold_out_classes,
    normalize_within_classes,
)
from dml.models.embedding import EmbeddingModel
from dml.models.networks import describe_timm_model
from dml.report.console import metric_table
from dml.report.pictures import write_contact_sheets
from dml.report.statistics import average_by_class, mean_interval
from dml.run.builders import build_evaluation_data
from dml.run.evaluators import build_metric_config, choose_final_split
from dml.run.feature_source import FeatureSource
from dml.run.prepare_job import make_cache_folder
from dml.run.settings import InspectSettings, read_settings
from dml.runtime.configuration import key_of
from dml.runtime.console import console, warn
from dml.runtime.errors import InputError, suggest
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import format_count, in_markup

METRICS = ("recall@1", "map@r")


def inspect(config: DictConfig, _folder: RunFolder, overrides: list[str]) -> dict[str, Metrics]:
    """Print what a data set holds, draw its contact sheets, and test the features of backbones.

    Returns:
        The metrics on the split that a training is tested on at its end, by backbone and projection.

    Raises:
        InputError: if an option can't be used, a backbone is unknown or none has weights, the data set has a fault, no
            query has a positive, or another process prepares the data set.
    """
    settings = read_settings(config, InspectSettings)
    model_configs = compose_models(settings, overrides)
    table, whole_table = read_part(settings)
    folder = make_cache_folder(settings)
    with hold_preparation_lock(folder.path):
        images = check_and_summarize(settings, table, folder, whole_table)
        for line in describe_copies(table, images):
            warn(line)
        readable = take_readable(table, images)
        if len(readable) < len(table):
            warn("missing and unreadable files are left out below; dml prepare lists them")
        if settings.sheet:
            write_contact_sheets(readable, folder.path, settings.data.limits, **vars(settings.sheet))
        results = _test_backbones(settings, readable, folder, model_configs)
    sheets = "sheet_*.png, " if settings.sheet else ""
    console.print(f"[bold]written[/]  {in_markup(folder.path)}: {in_markup(sheets)}features-*.npz")
    return results


def compose_models(settings: InspectSettings, overrides: list[str]) -> dict[str, DictConfig]:
    """Compose the model of each entry of ``backbones`` -> {name: configuration of the model}.

    The chosen model keeps its own values, such as ``model.backbone.weights``; the others are as in conf/model.

    Raises:
        InputError: if an entry isn't the name of a file in conf/model.
    """
    chosen = HydraConfig.get().runtime.choices.get("model")
    other_overrides = [
        override for override in overrides if key_of(override).split(".")[0] not in ("model", "backbones")
    ]
    names = [chosen] if settings.backbones is None else settings.backbones
    if not names:
        raise InputError(f"backbones={names}: a list of models, such as [tf_efficientnet_lite0,resnet18], or null")
    model_configs = {}
    for name in map(str, names):
        try:
            composed = settings if name == chosen else compose("inspect", overrides=[*other_overrides, f"model={name}"])
        except MissingConfigException as error:
            remedy = describe_timm_model(name) or suggest(name, error.options or ())
            raise InputError(f"backbones={name}: no such model{remedy}") from error
        model_configs[name] = composed.model
    return model_configs


def _test_backbones(
    settings: InspectSettings, table: ImageTable, folder: CacheFolder, model_configs: Mapping[str, DictConfig]
) -> dict[str, Metrics]:
    """Print the metrics of each backbone's features, and what they mean; a backbone without weights is left out."""
    tested = table.select_evaluated(split := choose_final_split(table))
    check_queries(tested)
    evaluator = _make_evaluator(settings, tested)
    training = table.subset("train")
    learning = table.take(np.concatenate([table.rows(split) for split in TRAINING_SPLITS]))
    groups = hold_out_classes(learning.labels[:, 0])
    reading = set_for_readable(settings)
    size = settings.components or _count_dimensions(settings.model)
    results: dict[str, Metrics] = {}
    advice: list[str] = []
    errors: list[Exception] = []
    for name, model_config in model_configs.items():
        try:
            model = build_seeded_model(model_config, settings.seed)
        except (InputError, InstantiationException) as error:  # often weights that can't be had
            if (line := explain(error)) is None:
                raise
            warn(f"backbone {name} is left out: {line}")
            errors.append(error)
            continue
        source = FeatureSource(reading, model_config, model, folder)
        tested_features = source.load_raw(tested)
        training_features = source.load_raw(training) if len(training) else tested_features[:0]
        projections = evaluate_projections(training_features, tested_features, evaluator, size)
        results |= {f"{name}, {projection}": metrics for projection, metrics in projections.items()}
        if groups:
            features = torch.cat([training_features, source.load_raw(table.subset("val"))])
            gains = describe_gains(measure_gains(settings, learning, groups, features))
            advice.append(f"{name}: {gains} {_describe_duration(settings, training, model)}")
    if not results:
        raise errors[0]
    title = f"features before any training, on the {split} split"
    console.print(metric_table(results, levels=table.levels, metrics=METRICS, title=title))
    if is_of_one_class(tested):
        verdict = f"All images of the {split} split are of one {tested.levels[0]}, so that every neighbor is right."
    else:
        verdict = describe_best(results, len(evaluator.benchmark_lists[0].queries), tested.levels)
    for line in (verdict, *advice):
        console.print(in_markup(line), soft_wrap=False)
    return results


def measure_gains(
    settings: InspectSettings, table: ImageTable, groups: Sequence[NDArray[np.bool_]], features: Tensor
) -> list[float]:
    """Measure by how much a linear map that knows some classes raises the MAP@R of others -> (C,), one a class.

    In each group of classes the images search each other by ``features`` (N, F); the map is learned from all other
    classes.
    """
    labels = table.labels[:, 0]
    gains: list[float] = []
    for is_held in groups:
        held, rows = np.flatnonzero(is_held), torch.arange(int(is_held.sum()))
        tested = table.take(held)
        evaluator = _make_evaluator(settings, replace(tested, split=np.full(len(tested), "train")))
        mapped = normalize_within_classes(features[~is_held], labels[~is_held], features[held])
        before, after = (
            average_by_class(evaluator, embeddings, rows, "level0/map@r") for embeddings in (features[held], mapped)
        )
        gains += (after - before).tolist()
    return gains


def describe_gains(gains: Sequence[float]) -> str:
    """Describe whether a training pays, by the gains in MAP@R of classes that a linear map doesn't know."""
    gain = mean_interval([100 * value for value in gains])
    measured = (
        f"a linear map that was learned from other classes changes MAP@R by {gain.mean:+.1f} ± {gain.half_width:.1f} "
        f"points, by {gain.runs} classes of the training."
    )
    if gain.mean > gain.half_width:
        return f"{measured} Train the whole network, the default: in our tests that gained 2 to 6 times as much."
    return f"{measured} That can't tell whether a training pays: training.frozen=true tries it with the heads alone."


STEPS, BATCH_SIZE, TIMED_IMAGES = 400, 64, 16
"""The training whose duration is told, and the number of images in the steps that are timed."""


def _describe_duration(settings: InspectSettings, table: ImageTable, model: EmbeddingModel) -> str:
    """Describe how long a training takes, by a step with a few images."""
    images = build_evaluation_data(settings, table.take(np.arange(min(len(table), TIMED_IMAGES))))
    images.tested_on = "train"
    pixels = next(iter(images.test_dataloader()))[0]
    for _ in range(2):  # the first step also allocates memory
        start = time.perf_counter()
        torch.autograd.backward(torch.cat([*model(pixels).values()], dim=1).sum())
    minutes = (time.perf_counter() - start) * STEPS * BATCH_SIZE / len(pixels) / 60
    duration = f"about {format_count(round(minutes), 'minute')}" if minutes >= 1 else "less than a minute"
    return f"{STEPS} steps with {BATCH_SIZE} images take {duration} on this processor."


def _make_evaluator(settings: InspectSettings, tested: ImageTable) -> Evaluator:
    """Make the evaluator of recall@1 and MAP@R by cosine; what a ranking excludes is as in a test."""
    metric_config = build_metric_config(settings, tested)
    shown = replace(metric_config, metrics=("recall", "map@r"), recall_at=(1,), clustering=False)
    return Evaluator(tested, shown)


def _count_dimensions(model_config: DictConfig) -> int:
    """Return the size of a model's concatenated embeddings, without its pretrained weights."""
    without_weights = model_config.copy()
    if "weights" in without_weights.backbone:
        without_weights.backbone.weights = None
    return sum(build_seeded_model(without_weights, seed=0).embed_dims.values())
