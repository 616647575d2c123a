"""What backbones find in a data set before any training, and whether one pays."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException, MissingConfigException
from omegaconf import DictConfig
from torch import Tensor

from dml.commands.error_lines import explain
from dml.data.prepared.cache import CacheFolder
from dml.data.table import TEST_SPLITS, TRAINING_SPLITS, ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.items import check_queries, is_of_one_class
from dml.evaluation.raw_features import (
    Metrics,
    describe_best,
    evaluate_projections,
    hold_out_classes,
    measure_gains,
)
from dml.models.embedding import EmbeddingModel
from dml.models.networks import describe_timm_model
from dml.report.console import metric_table
from dml.report.statistics import mean_interval
from dml.run.builders import build_metric_config, choose_final_split
from dml.run.building import build
from dml.run.settings import InspectSettings
from dml.run.untrained_model import FeatureSource
from dml.runtime.configuration import key_of
from dml.runtime.errors import InputError, suggest
from dml.runtime.text import console, in_markup, warn

METRICS = ("recall@1", "map@r")


def compose_models(settings: InspectSettings, overrides: list[str]) -> dict[str, DictConfig]:
    """Compose the model of each entry of ``backbones`` -> {name: configuration of the model}.

    The chosen model keeps its own values, such as ``model.backbone.weights``; the others are as in conf/model.
    """
    chosen = HydraConfig.get().runtime.choices.get("model")
    other_overrides = [
        override for override in overrides if key_of(override).split(".")[0] not in ("model", "backbones")
    ]
    model_configs = {}
    for name in settings.backbones or [str(chosen)]:
        try:
            composed = settings if name == chosen else compose("inspect", overrides=[*other_overrides, f"model={name}"])
        except MissingConfigException as error:
            remedy = describe_timm_model(name) or suggest(name, error.options or ())
            raise InputError(f"backbones={name}: no such model{remedy}") from error
        model_configs[name] = composed.model
    return model_configs


def evaluate_backbones(
    settings: InspectSettings, table: ImageTable, folder: CacheFolder, model_configs: Mapping[str, DictConfig]
) -> tuple[dict[str, Metrics], Tensor]:
    """Print the metrics of each backbone that has weights, and what they mean -> these, and the first's features."""
    tested = table.select_evaluated(split := choose_final_split(table))
    check_queries(tested)
    # what a ranking excludes is as in a test
    shown = replace(
        build_metric_config(settings, tested), metrics=("recall", "map@r"), recall_at=(1,), clustering=False
    )
    evaluator = Evaluator(tested, shown)
    parts = [rows for splits in (["train"], ["val"], TEST_SPLITS) if len(rows := table.rows(*splits))]
    tested_rows = table.rows(*TEST_SPLITS) if split == "test" else table.rows(split)
    learning_rows = table.rows(*TRAINING_SPLITS)
    groups = hold_out_classes(table.labels[learning_rows, 0])
    size, results, advice = settings.components, dict[str, Metrics](), list[str]()
    first_features, errors = torch.empty(0), list[Exception]()
    reading = replace(settings, data=replace(settings.data, on_corrupt="raise"))  # all could be read a moment ago
    for name, model_config in model_configs.items():
        try:
            model = _build_seeded_model(model_config, settings.seed)
        except (InputError, InstantiationException) as error:  # often weights that can't be had
            if (line := explain(error)) is None:
                raise
            warn(f"backbone {name} is left out: {line}")
            errors.append(error)
            continue
        source = FeatureSource(reading, model_config, model, folder)
        features = torch.cat([source.load_raw(table.take(rows)) for rows in parts])[np.argsort(np.concatenate(parts))]
        first_features = first_features if results else features
        size = size or sum(model.embed_dims.values())
        projections = evaluate_projections(features[table.rows("train")], features[tested_rows], evaluator, size)
        results |= {f"{name}, {projection}": metrics for projection, metrics in projections.items()}
        if groups:
            gains = measure_gains(table.take(learning_rows), groups, features[learning_rows])
            advice.append(f"{name}: {describe_gains(gains)}")
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
    return results, first_features


def _build_seeded_model(model_config: DictConfig, seed: int) -> EmbeddingModel:
    """Build a model, whose random weights are the same each time."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return cast(EmbeddingModel, build(model_config))


def describe_gains(gains: Sequence[float]) -> str:
    """Describe whether a training pays, by the gains in MAP@R of classes that a linear map doesn't know."""
    gain = mean_interval([100 * value for value in gains])
    advice = "That can't tell whether a training pays: training.frozen=true tries it with the heads alone."
    if gain.mean > gain.half_width:
        advice = "Train the whole network, the default: in our tests that gained 2 to 6 times as much."
    return (
        f"a linear map that was learned from other classes changes MAP@R by {gain.mean:+.1f} ± {gain.half_width:.1f} "
        f"points, by {gain.runs} classes of the training. {advice}"
    )
