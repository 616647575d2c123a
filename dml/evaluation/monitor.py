"""The metric of a validation that chooses a checkpoint: ``checkpoints.monitor``."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from dml.data.table import ImageTable
from dml.evaluation.head_sets import are_heads
from dml.evaluation.metric import Metric
from dml.evaluation.metric_config import MetricConfig
from dml.evaluation.printed_metrics.metric_names import HEADS, MetricName, metric_names, split_head_names
from dml.ops.errors import InputError


def make_validation_config(test: MetricConfig, *monitored: str) -> MetricConfig:
    """Return the configuration of a validation's metrics: recall, and the metrics that are monitored."""
    names = [MetricName.parse(name) for name in monitored]
    custom = {metric.name: metric for metric in test.metrics if isinstance(metric, Metric)}
    metrics: dict[str | Metric, None] = dict.fromkeys(
        ["recall", *(custom.get(name.family, name.family) for name in names)]
    )
    recall_at = tuple(dict.fromkeys([*test.recall_at, *(name.k for name in names if name.k)]))
    return replace(test, metrics=tuple(metrics), recall_at=recall_at, clustering=True)


def check_tie_breaker(tie_breaker: str | None, table: ImageTable, test: MetricConfig) -> None:
    """Make sure that a validation can compute the metric that decides between equally good checkpoints.

    Raises:
        InputError: if no validation has the metric, or if smaller values of it are better.
    """
    if tie_breaker is None:
        return
    monitored = MetricName.parse(tie_breaker)
    metric = test.find_metric(monitored.family)
    known = metric_names(table, replace(test, recall_at=_add_monitored_k(test.recall_at, monitored)))
    if monitored.metric not in known or monitored.heads or (metric and not metric.higher_is_better):
        nearest = get_close_matches(tie_breaker, metric_names(table, test), n=4, cutoff=0.0)
        raise InputError(
            f"checkpoints.tie_breaker={tie_breaker}: no metric of all heads that is better the larger it is; nearest: "
            f"{', '.join(nearest)}"
        )


def check_monitor(
    monitor: str, mode: str, table: ImageTable, test: MetricConfig, heads: Sequence[str], evaluated_heads: Sequence[str]
) -> None:
    """Make sure that a validation can compute the metric that chooses a checkpoint.

    Args:
        monitor: name of the metric, such as "level0/recall@1" or "heads/H/h_ap".
        mode: "max" or "min", whether the largest or the smallest value is chosen.
        table: the rows of a validation.
        test: metrics of a test.
        heads: names of the model's heads.
        evaluated_heads: names of the heads and the sets of heads that a test evaluates.

    Raises:
        InputError: if no validation has the metric, or a smaller value of it is the better one and the largest chosen.
    """
    monitored = MetricName.parse(monitor)
    metric = test.find_metric(monitored.family)
    if metric and not metric.higher_is_better and mode == "max":
        raise InputError(f"checkpoints.mode=max: must be min, as smaller values of {monitor} are better")
    known = metric_names(table, replace(test, recall_at=_add_monitored_k(test.recall_at, monitored)))
    if monitored.metric not in known or not are_heads(split_head_names(monitored.heads), ["", *heads]):
        prefixes = ["", *(f"{HEADS}/{name}/" for name in dict.fromkeys((*heads, *evaluated_heads)))]
        names = [prefix + name for prefix in prefixes for name in metric_names(table, test)]
        nearest = get_close_matches(monitor, names, n=4, cutoff=0.0)
        raise InputError(
            f"checkpoints.monitor={monitor}: no metric that a validation has; nearest: {', '.join(nearest)}"
        )


def _add_monitored_k(recall_at: Sequence[int], monitored: MetricName) -> tuple[int, ...]:
    """Return the k of recall@k, with that of a monitored metric."""
    return tuple(dict.fromkeys([*recall_at, *([monitored.k] if monitored.k else [])]))
