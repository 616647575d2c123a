"""The tables of metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dml.evaluation.metric_names import HEADS, head_label, short
from dml.evaluation.report.run import Run
from dml.evaluation.scores import GRADED

LEVEL, MEAN = "level", "mean"
ALL_LEVELS, MEAN_OF_LEVELS = "all levels", "mean of the levels"
COUNT = "queries_without_positives"
HEADLINES = ("level0/recall@1", "level0/map@r", "h_ap", "level0/nmi")


def percent(value: float | None) -> str:
    """0.6584 -> 65.8; a dash for nothing."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f}"


@dataclass(frozen=True)
class MetricTable:
    """Groups of rows, each a name and the cells.

    Args:
        columns: the heads.
        groups: {level, or empty: {row: cells}}.
        note: what else there is to know.
    """

    columns: Sequence[str]
    groups: Mapping[str, Mapping[str, Sequence[str]]]
    note: str = ""


def parts(run: Run) -> dict[str, dict[str, float]]:
    """{"before training", "head L", ..., "all heads": metrics}, as far as they were measured."""
    rows = {"before training": fractions(run.part("raw/"))}
    rows |= {head_label(name): fractions(run.part(f"{HEADS}/{name}/")) for name in run.head_sets}
    rows["all heads" if run.head_sets else "after training"] = fractions(run.metrics)
    return {name: values for name, values in rows.items() if values}


def fractions(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of one level or their mean, and the graded ones: no numbers of queries, no step and the like."""
    return {
        name: value
        for name, value in metrics.items()
        if name in GRADED or (name.startswith((LEVEL, f"{MEAN}/")) and not name.endswith(COUNT))
    }


def group_of(metric: str, levels: Sequence[str]) -> str:
    """What a metric is grouped under: a level, the mean of the levels, or all of them, which graded metrics are of."""
    prefix = metric.rpartition("/")[0]
    if not prefix:
        return ALL_LEVELS
    return MEAN_OF_LEVELS if prefix == MEAN else levels[int(prefix.removeprefix(LEVEL))]


def metric_tables(run: Run) -> list[MetricTable]:
    """Each level's metrics, and the graded ones, which are of all levels together."""
    rows = parts(run)
    names = dict.fromkeys(name for values in rows.values() for name in values)
    groups = {group: [name for name in names if group_of(name, run.queries.levels) == group] for group in _groups(run)}
    graded = groups.pop(ALL_LEVELS)
    of_levels = list(dict.fromkeys(short(name) for own in groups.values() for name in own))
    tables = []
    if of_levels:
        cells = {group: _cells(rows, own, of_levels) for group, own in groups.items() if own}
        tables.append(MetricTable(of_levels, cells, _left_out(run)))
    if graded:
        columns = [short(name) for name in graded]
        tables.append(MetricTable(columns, {"": _cells(rows, graded, columns)}))
    return tables


def _groups(run: Run) -> list[str]:
    return [*run.queries.levels, MEAN_OF_LEVELS, ALL_LEVELS]


def _cells(
    rows: Mapping[str, Mapping[str, float]], names: Iterable[str], columns: Sequence[str]
) -> dict[str, list[str]]:
    """The rows that have any of the metrics, a cell a column."""
    metric = {short(name): name for name in names}
    found = {
        row: {column: values[metric[column]] for column in columns if metric.get(column) in values}
        for row, values in rows.items()
    }
    return {row: [percent(own.get(column)) for column in columns] for row, own in found.items() if own}


def _left_out(run: Run) -> str:
    """How many queries have no positive."""
    counts = {level: int(run.metrics.get(f"{LEVEL}{i}/{COUNT}", 0)) for i, level in enumerate(run.queries.levels)}
    left_out = [f"{count:,} at level {level}" for level, count in counts.items() if count]
    return f"Queries without a positive, left out of the means: {', '.join(left_out)}." if left_out else ""


@dataclass(frozen=True)
class Headline:
    """A metric in large type."""

    name: str
    value: str
    before: str


def headlines(run: Run) -> list[Headline]:
    """The metrics that say most, with what they were before training."""
    return [
        Headline(short(name), percent(run.metrics[name]), percent(run.metrics.get(f"raw/{name}")))
        for name in HEADLINES
        if name in run.metrics
    ]
