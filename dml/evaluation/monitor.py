"""The metrics of a validation: ``checkpoints.monitor``, which chooses a checkpoint, and those that are shown."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from shlex import quote
from typing import Any

import numpy as np

from dml.data.table import ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import (
    HEADS,
    Kind,
    Metric,
    MetricConfig,
    MetricName,
    are_heads,
    metric_names,
    split_head_names,
)
from dml.retrieval.kmeans_clusters import estimate_time
from dml.runtime.errors import InputError

AUTO = "auto"
"""The value of ``evaluation.validation_metrics`` that chooses the metrics by the labels."""


def make_validation_config(test: MetricConfig, *monitored: str) -> MetricConfig:
    """Return the configuration of a validation's metrics: recall, and the metrics that are monitored."""
    names = [MetricName.parse(name) for name in monitored]
    custom = {metric.name: metric for metric in test.metrics if isinstance(metric, Metric)}
    metrics: dict[str | Metric, None] = dict.fromkeys(
        ["recall", *(custom.get(name.family, name.family) for name in names)]
    )
    recall_at = tuple(dict.fromkeys([*test.recall_at, *(name.k for name in names if name.k)]))
    return replace(test, metrics=tuple(metrics), recall_at=recall_at, clustering=True)


def make_further_config(names: Any, test: MetricConfig, monitored: Sequence[str], table: ImageTable) -> MetricConfig:
    """Return the configuration of the metrics of a validation that `make_validation_config` leaves out."""
    if names == AUTO:
        chosen = ["map@r", "nmi"] + ["h_ap"] * (len(table.levels) > 1)
        names = [metric.name for metric in test.selected if metric.name in chosen]
    custom = {metric.name: metric for metric in test.custom}
    computed = {"recall", *(MetricName.parse(name).family for name in monitored)}
    metrics = [custom.get(str(name), name) for name in dict.fromkeys(names) if name not in computed]
    try:
        return replace(test, metrics=metrics, clustering=True)
    except InputError as error:
        raise InputError(f"evaluation.validation_{error}") from error


def describe_clustering(validation: Evaluator, dimension: int) -> str:
    """Say how long k-means takes in a validation, and which key leaves it out; "" without k-means or below 1 s."""
    table, metrics = validation.table, validation.config.selected
    clustered = [metric.name for metric in metrics if metric.kind == Kind.CLUSTERS]
    if not clustered:
        return ""
    sizes = []
    for part in validation.benchmark_lists:
        labels = table.labels[part.queries]
        columns = labels.T if part.level is None else labels.T[[part.level]]
        sizes.append((len(labels), sum(len(np.unique(column)) for column in columns)))
    if not (duration := estimate_time(dimension * sum(images * clusters for images, clusters in sizes))):
        return ""
    images, clusters = map(sum, zip(*sizes, strict=True))
    others = ",".join(metric.name for metric in metrics if metric.name not in clustered)
    return (
        f"{duration} in each validation, for {', '.join(clustered)} of {images:,} images in {clusters:,} clusters, "
        f"{dimension:,} dimensions; {quote(f'evaluation.validation_metrics=[{others}]')} leaves it out"
    )


def check_tie_breaker(tie_breaker: str | None, table: ImageTable, test: MetricConfig) -> None:
    """Make sure that a validation can compute the metric that decides between equally good checkpoints."""
    if tie_breaker is None:
        return
    metric = test.find_metric(MetricName.parse(tie_breaker).family)
    if not _has_metric(tie_breaker, table, test, ()) or (metric and not metric.higher_is_better):
        raise InputError(
            f"checkpoints.tie_breaker={tie_breaker}: no metric of all heads that is better the larger it is; nearest: "
            f"{_find_nearest(tie_breaker, metric_names(table, test))}"
        )


def check_monitor(
    monitor: str, mode: str, table: ImageTable, test: MetricConfig, heads: Sequence[str], evaluated_heads: Sequence[str]
) -> None:
    """Make sure that a validation can compute the metric that chooses a checkpoint, of one or several of the heads."""
    metric = test.find_metric(MetricName.parse(monitor).family)
    if metric and not metric.higher_is_better and mode == "max":
        raise InputError(f"checkpoints.mode=max: must be min, as smaller values of {monitor} are better")
    if not _has_metric(monitor, table, test, heads):
        prefixes = ["", *(f"{HEADS}/{name}/" for name in dict.fromkeys((*heads, *evaluated_heads)))]
        names = [prefix + name for prefix in prefixes for name in metric_names(table, test)]
        nearest = _find_nearest(monitor, names)
        raise InputError(f"checkpoints.monitor={monitor}: no metric that a validation has; nearest: {nearest}")


def _has_metric(name: str, table: ImageTable, test: MetricConfig, heads: Sequence[str]) -> bool:
    """Tell whether a validation can compute a metric, at any k, of all heads or of some of the heads."""
    monitored = MetricName.parse(name)
    recall_at = (*test.recall_at, *([monitored.k] if monitored.k else []))
    is_known = monitored.metric in metric_names(table, replace(test, recall_at=recall_at))
    return is_known and are_heads(split_head_names(monitored.heads), ["", *heads])


def _find_nearest(name: str, names: Sequence[str]) -> str:
    return ", ".join(get_close_matches(name, names, n=4, cutoff=0.0))
