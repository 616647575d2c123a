"""What the numbers of a page are of: vectors, first weights, choice of the checkpoint, and split of its trainings."""

from collections.abc import Iterable
from typing import Any

from omegaconf import OmegaConf

from dml.evaluation.measured_facts import UNKNOWN, describe_configuration, describe_measurement, merge_facts
from dml.papers.experiments import compose
from dml.papers.plans import PlannedRun
from dml.papers.tables.paper_tables import Training

KEYS = ("init", "model", "loss", "geometry", "choose_heads", "evaluation")
"""The keys of a configuration that the facts are read from."""


def describe_training(training: Training) -> dict[str, str]:
    """Return what the metrics of a training are of by the name of the fact, without training it."""
    return describe_configuration(_read_keys(training))


def describe_runs(runs: Iterable[PlannedRun]) -> dict[str, str]:
    """Return what the metrics of a training's runs are of; finished runs have stored it, and may differ in it."""
    return merge_facts(map(_describe_run, runs))


def _describe_run(run: PlannedRun) -> dict[str, str]:
    config = _read_keys(run.training)
    stored = describe_measurement(run.metrics, config) if run.is_finished else {}  # old versions stored less
    return describe_configuration(config) | {name: value for name, value in stored.items() if value != UNKNOWN}


def _read_keys(training: Training) -> dict[str, Any]:
    config = compose(training)
    values = {key: config.get(key) for key in KEYS}
    return {
        key: OmegaConf.to_container(value, resolve=key == "model") if OmegaConf.is_config(value) else value
        for key, value in values.items()
    }
