"""What the numbers of a page are of: vectors, first weights, choice of the checkpoint, and split of its trainings."""

from collections.abc import Iterable
from typing import Any

from omegaconf import OmegaConf

from dml.evaluation.measured_facts import UNKNOWN, describe_configuration, describe_measurement
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
    values_by_fact: dict[str, dict[str, None]] = {}
    for run in runs:
        config = _read_keys(run.training)
        facts = describe_configuration(config)
        if run.is_finished:  # those of old versions lack some facts
            stored = describe_measurement(run.metrics, config)
            facts |= {name: value for name, value in stored.items() if value != UNKNOWN}
        for name, value in facts.items():
            values_by_fact.setdefault(name, {})[value] = None
    return {name: " or ".join(values) for name, values in values_by_fact.items()}


def _read_keys(training: Training) -> dict[str, Any]:
    config = compose(training)
    values = {key: config.get(key) for key in KEYS}
    return {
        key: OmegaConf.to_container(value, resolve=key == "model") if OmegaConf.is_config(value) else value
        for key, value in values.items()
    }
