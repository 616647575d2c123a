"""The tables of a report's metrics, and the metrics in large type above them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES
from dml.evaluation.names import (
    MetricDescription,
    MetricName,
    describe_metric,
    format_value,
    is_joint_metric,
    split_parts,
)
from dml.report.run import ReportedRun

LEVEL, MEAN = "level", "mean"
ALL_LEVELS, MEAN_OF_LEVELS = "all levels", "mean of the levels"
HEADLINES = ("level0/recall@1", "level0/map@r", "h_ap", "level0/nmi")
MISSING = "–"


def format_metric(value: float | None, metric: MetricDescription) -> str:
    """Format a value of a metric, such as 65.8 for 0.6584; a dash for None and NaN."""
    return MISSING if value is None or math.isnan(value) else format_value(value, metric)


@dataclass(frozen=True)
class MetricTable:
    """A table of metrics, whose rows are grouped by level.

    ``groups`` are {name of the level, or "" for all levels together: {name of the row: cells}}; ``note`` is a sentence
    below.
    """

    columns: Sequence[str]
    groups: Mapping[str, Mapping[str, Sequence[str]]]
    note: str = ""


def _metrics_by_part(run: ReportedRun) -> dict[str, dict[str, float]]:
    """Return the metrics of each part that the run has metrics of.

    Returns:
        {"before training", "head L", ..., "all heads", "+ alpha-QE", ...: metrics}.
    """
    trained_label = "after training" if run.is_trained else "the vectors"
    whole_label = "all heads" if any(MetricName.parse(name).heads for name in run.metrics) else trained_label
    parts = split_parts(run.metrics, "before training", whole_label)
    rows = {name: _select_joint_metrics(part) for name, part in parts.items()}
    return {name: values for name, values in rows.items() if values}


def _select_joint_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of all heads together: those of a level, of the mean of the levels, and of all levels."""
    return {name: value for name, value in metrics.items() if is_joint_metric(name, value)}


def _name_group(metric: str, levels: Sequence[str]) -> str:
    """Return the group of a metric in the tables: the name of its level, `MEAN_OF_LEVELS` or `ALL_LEVELS`."""
    prefix = metric.rpartition("/")[0]
    if not prefix:
        return ALL_LEVELS
    return MEAN_OF_LEVELS if prefix == MEAN else levels[int(prefix.removeprefix(LEVEL))]


def make_metric_tables(run: ReportedRun) -> list[MetricTable]:
    """Make a table of the metrics of each level, and one of the metrics of all levels together, such as H-AP."""
    rows = _metrics_by_part(run)
    names = dict.fromkeys(name for values in rows.values() for name in values)
    levels = run.queries.levels
    groups = {
        group: [name for name in names if _name_group(name, levels) == group]
        for group in (*levels, MEAN_OF_LEVELS, ALL_LEVELS)
    }
    hierarchical = groups.pop(ALL_LEVELS)
    columns = _select_columns(run, (name for group in groups.values() for name in group))
    tables = []
    if columns:
        cells = {group: _format_rows(rows, run, metrics, columns) for group, metrics in groups.items() if metrics}
        tables.append(MetricTable(list(columns), cells, _note_skipped_queries(run)))
    if hierarchical:
        columns = _select_columns(run, hierarchical)
        tables.append(MetricTable(list(columns), {"": _format_rows(rows, run, hierarchical, columns)}))
    return tables


def list_labels_not_in_percent(run: ReportedRun) -> list[str]:
    """Return the labels of the run's metrics whose values are not shown in percent."""
    columns = _select_columns(run, (name for values in _metrics_by_part(run).values() for name in values))
    return [label for label, metric in columns.items() if not metric.shown_in_percent]


def _select_columns(run: ReportedRun, names: Iterable[str]) -> dict[str, MetricDescription]:
    """Return {label: metric} of some names in metrics.json; a metric of several levels is one column."""
    return {metric.label: metric for metric in (describe_metric(name, run.custom_metrics) for name in names)}


def _format_rows(
    rows: Mapping[str, Mapping[str, float]],
    run: ReportedRun,
    names: Iterable[str],
    columns: Mapping[str, MetricDescription],
) -> dict[str, list[str]]:
    """Return the cells of each row that has any of the metrics ``names`` of one group, such as those of a level."""
    name_by_label = {describe_metric(name, run.custom_metrics).label: name for name in names}
    return {
        row: [format_metric(values.get(name_by_label.get(label, "")), metric) for label, metric in columns.items()]
        for row, values in rows.items()
        if any(name in values for name in name_by_label.values())
    }


def _note_skipped_queries(run: ReportedRun) -> str:
    """Return a sentence with the number of queries without a positive at each level; "" if all have one."""
    counts = {
        level: int(run.metrics.get(f"{LEVEL}{i}/{QUERIES_WITHOUT_POSITIVES}", 0))
        for i, level in enumerate(run.queries.levels)
    }
    skipped = [f"{count:,} at level {level}" for level, count in counts.items() if count]
    return f"Queries without a positive, which the means leave out: {', '.join(skipped)}." if skipped else ""


def choose_headlines(run: ReportedRun) -> dict[str, tuple[str, str]]:
    """Return {label: (value, value before the training)} of those metrics of `HEADLINES` that the run has."""
    described = {name: describe_metric(name, run.custom_metrics) for name in HEADLINES if name in run.metrics}
    return {
        metric.label: (format_metric(run.metrics[name], metric), format_metric(run.metrics.get(f"raw/{name}"), metric))
        for name, metric in described.items()
    }
