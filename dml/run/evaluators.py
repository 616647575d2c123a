"""The metrics that a configuration describes, and the splits that they are computed on."""

import re
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dml.data.table import TEST_SPLITS, ImageTable
from dml.evaluation.metric import Kind, MetricConfig, full_metric_name
from dml.evaluation.threshold import ThresholdSettings
from dml.run.building import build
from dml.run.settings import Settings
from dml.runtime.errors import InputError


def build_metric_config(settings: Settings, part: ImageTable) -> MetricConfig:
    """Build the configuration of a test's metrics from those options of ``evaluation`` that are its fields."""
    evaluation = settings.evaluation
    weights = evaluation.level_weights
    if weights is not None and len(weights) != len(part.levels):
        raise InputError(
            f"evaluation.level_weights={list(weights)}: {len(weights)} weights for the {len(part.levels)} levels "
            f"{', '.join(part.levels)}"
        )
    has_gallery = bool(len(part.rows("gallery")))
    chosen = {
        field.name: getattr(evaluation, field.name) for field in fields(MetricConfig) if hasattr(evaluation, field.name)
    }
    values = {
        name: build(value, _convert_="all") if OmegaConf.is_config(value) else value for name, value in chosen.items()
    }
    # a gallery that doesn't hold the queries keeps all its items
    excludes = bool(evaluation.exclude and (not has_gallery or settings.dataset.queries_in_gallery))
    try:
        return MetricConfig(**values, exclude_nearest=excludes)
    except InputError as error:
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        raise InputError(f"evaluation.{error}" if name in values else str(error)) from error


def complete_metric_names(config: DictConfig) -> None:
    """Name the finest level in the metrics that choose a checkpoint: recall@1 is level0/recall@1."""
    metrics: Any = OmegaConf.select(config, "evaluation.metrics", default=[])
    entries = [entry for entry in metrics if OmegaConf.is_dict(entry)]
    custom = [entry.get("name") for entry in entries if entry.get("kind") != Kind.HIERARCHY]
    for part in (config, *(changes for changes in config.get("stages", {}).values() if changes)):
        for key in ("checkpoints.monitor", "checkpoints.tie_breaker"):
            if isinstance(name := OmegaConf.select(part, key), str):
                OmegaConf.update(part, key, full_metric_name(name, custom))


def build_threshold_settings(settings: Settings) -> ThresholdSettings | None:
    """Build the settings of ``evaluation.threshold``; None if a test has no threshold."""
    threshold = settings.evaluation.threshold
    return None if threshold is None else ThresholdSettings(**vars(threshold))


def choose_final_split(table: ImageTable) -> str:
    """Return the split that a run is tested on at its end: "test", or "val" where no class is held out for a test."""
    if len(table.rows(*TEST_SPLITS)):
        return "test"
    if len(table.rows("val")):
        return "val"
    raise InputError(
        f"{table.source}: no class is left for a test or a validation; a dataset.reader.val_fraction such as 0.2 holds "
        "classes out"
    )


def choose_tested_split(settings: Settings, table: ImageTable) -> str:
    """Return the split that a run is tested on at its end: `choose_final_split`, or "val" by ``evaluation.split``."""
    evaluation = settings.evaluation
    if evaluation.split is None:
        return choose_final_split(table)
    if evaluation.selection == "test":
        raise InputError("evaluation.selection=test: evaluation.split=val keeps the test classes unseen; val or last")
    if evaluation.fixed_neighbors:
        raise InputError(
            f"evaluation.fixed_neighbors={evaluation.fixed_neighbors}: they are of the test classes, which "
            "evaluation.split=val keeps unseen; null"
        )
    if not len(table.rows("val")):
        raise InputError("evaluation.split=val: no class is held out for a validation; dataset.folds=5 holds some out")
    return "val"


def choose_selection(settings: Settings, table: ImageTable) -> str:
    """Return what chooses the checkpoint that is tested: "val", the "last" one, or "test" itself.

    Without a validation split the last checkpoint stands in for the best of it.
    """
    selection: str = settings.evaluation.selection
    if selection == "test" and not len(table.rows(*TEST_SPLITS)):
        raise InputError("evaluation.selection=test: no class is held out for a test; val or last")
    return "last" if selection == "val" and not len(table.rows("val")) else selection
