"""What the numbers of a page are of: vectors, first weights, choice of the checkpoint, and split of its trainings."""

from collections.abc import Iterable, Sequence
from typing import Any

from omegaconf import OmegaConf

from dml.papers.experiments import compose
from dml.papers.plans import PlannedRun
from dml.papers.tables.paper_tables import Training
from dml.report.provenance import UNKNOWN, describe_configuration, describe_measurement, merge_facts

KEYS = ("init", "model", "loss", "geometry", "choose_heads", "evaluation")
"""The keys of a configuration that the facts are read from."""


def describe_training(training: Training) -> dict[str, str]:
    """Return what the metrics of a training are of by the name of the fact, without training it."""
    return describe_configuration(_read_keys(training))


def describe_runs(runs: Iterable[PlannedRun], heads: Sequence[str] = ()) -> dict[str, str]:
    """Return what the metrics of a training's runs are of; finished runs have stored it, and may differ in it.

    Args:
        runs: runs of one training, or of trainings whose mean is meant.
        heads: heads whose embeddings the metrics are of; none stands for those of the whole embedding.
    """
    return merge_facts(_describe_run(run, heads) for run in runs)


def _describe_run(run: PlannedRun, heads: Sequence[str]) -> dict[str, str]:
    config = _read_keys(run.training)
    stored = describe_measurement(run.metrics, config) if run.is_finished else {}  # old versions stored less
    if heads:
        config |= {"model": config["model"] | {"heads": heads}, "choose_heads": False}
        stored.pop("vector", None)  # that of the whole embedding
    return describe_configuration(config) | {name: value for name, value in stored.items() if value != UNKNOWN}


def _read_keys(training: Training) -> dict[str, Any]:
    config = compose(training)
    values = {key: config.get(key) for key in KEYS}
    return {
        key: OmegaConf.to_container(value, resolve=key == "model") if OmegaConf.is_config(value) else value
        for key, value in values.items()
    }
