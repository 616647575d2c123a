"""The comparison of two runs that were tested on the same queries, as a report shows it."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dml.data.table import UNKNOWN
from dml.evaluation.names import MetricDescription, describe_metric
from dml.evaluation.per_query import (
    QueryTable,
    Strings,
    choose_lowest,
    compare_classes,
    describe_first_match,
    score_queries,
)
from dml.report.metrics import (
    ALL_LEVELS,
    MEAN_OF_LEVELS,
    MISSING,
    format_metric,
    metrics_by_part,
    name_group,
    select_joint_metrics,
)
from dml.report.run import ReportedRun
from dml.report.sheets import QueryResult, Tiles, show_query
from dml.report.statistics import Difference, mean_difference
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of two runs A and B, with the difference B - A.

    Args:
        name: label of the metric.
        values: values of A and of B; a fraction is in percent.
        difference: B - A, for a fraction in percent points.
        interval: 95 % interval of the difference, in words; "" for a metric that has no values of single queries.
        sure: whether the interval leaves out zero.
        bar: positions of the interval's start, the interval's end and the difference, in percent of the width of a
            bar with zero in the middle and "B is better" to the right; None without an interval.
    """

    name: str
    values: tuple[str, str]
    difference: str
    interval: str = ""
    sure: bool = False
    bar: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Outcomes:
    """The numbers of queries whose nearest neighbor has their class in both runs, in one run alone, or in neither."""

    both: int
    only_a: int
    only_b: int
    neither: int


def align_queries(a: ReportedRun, b: ReportedRun) -> ReportedRun:
    """Return run B with the rows of its queries in the order of run A, and with the paths of run A.

    Images are the same if they have the same path below the folder that holds all queries, because copies of a data
    set may lie in different folders. Classes are the same if they have the same name, because other training classes
    shift their numbers.

    Raises:
        InputError: if the runs were tested on different queries, or on the same ones with different classes.
    """
    queries_a, queries_b = a.queries, _renumber_classes(a.queries, b.queries)
    runs = f"{a.name} and {b.name}"
    if len(queries_a) != len(queries_b):
        raise InputError(f"{runs}: different queries, {len(queries_a):,} and {len(queries_b):,}")
    (root_a, keys_a), (root_b, keys_b) = _split_root(queries_a.paths), _split_root(queries_b.paths)
    row_by_key = {key: row for row, key in enumerate(keys_b)}
    order = np.array([row_by_key.get(key, -1) for key in keys_a])
    if (order < 0).any():
        raise InputError(f"{runs}: different queries, {queries_a.paths[int(np.argmin(order))]} is in the first alone")
    if queries_a.levels != queries_b.levels or not np.array_equal(queries_a.labels, queries_b.labels[order]):
        raise InputError(f"{runs}: different labels of the same queries")
    moved_paths = {
        path: root_a + path.removeprefix(root_b) if path.startswith(root_b) else path
        for path in queries_b.neighbors.ravel().tolist()
    }
    aligned = replace(
        queries_b,
        paths=queries_a.paths,
        labels=queries_a.labels,
        metrics={name: values[order] for name, values in queries_b.metrics.items()},
        neighbors=np.vectorize(moved_paths.__getitem__, otypes=[object])(queries_b.neighbors[order]),
        neighbor_labels=queries_b.neighbor_labels[order],
        similarities=queries_b.similarities[order],
        positions=None,
    )
    return replace(b, queries=aligned)


def _renumber_classes(a: QueryTable, b: QueryTable) -> QueryTable:
    """Return table B with the class numbers of table A, matched by name; classes that A lacks follow those of A.

    A level keeps its numbers if a name stands twice in it, and so do all levels if a table has no names.
    """
    if a.levels != b.levels or not (a.names and b.names):
        return b
    labels, neighbor_labels, names = b.labels.copy(), b.neighbor_labels.copy(), list(b.names)
    for level, (names_a, names_b) in enumerate(zip(a.names, b.names, strict=True)):
        if len({*names_a}) < len(names_a) or len({*names_b}) < len(names_b):
            continue
        names[level] = tuple(dict.fromkeys([*names_a, *names_b]))
        number_by_name = {name: number for number, name in enumerate(names[level])}
        numbers = np.array([*map(number_by_name.__getitem__, names_b), UNKNOWN])  # UNKNOWN, -1, takes the last
        labels[:, level] = numbers[labels[:, level]]
        neighbor_labels[:, :, level] = numbers[neighbor_labels[:, :, level]]
    return replace(b, labels=labels, neighbor_labels=neighbor_labels, names=tuple(names))


def _split_root(paths: Strings) -> tuple[str, list[tuple[str, int]]]:
    """Return the folder that holds all paths, and a key for each path.

    The key is the path below the folder, and how often the same path came before: a query of several lists has several
    rows.
    """
    listed = paths.tolist()
    root = os.path.join(os.path.commonpath([os.path.dirname(path) for path in listed]), "")
    counts: Counter[str] = Counter()
    keys = []
    for path in listed:
        keys.append((path.removeprefix(root), counts[path]))
        counts[path] += 1
    return root, keys


def compare_metrics(a: ReportedRun, b: ReportedRun) -> dict[str, list[ComparedMetric]]:
    """Compare the metrics that both runs have, with intervals where there are values of single queries.

    The intervals are of resampled classes of the finest level that all queries of a metric have. A single class has
    none, and neither has a metric with a value at other queries in either run.

    Returns:
        {name of a level, "mean of the levels" or "all levels": compared metrics}.
    """
    values_a, values_b = a.queries.metrics, b.queries.metrics
    intervals = {
        name: mean_difference(values, values_b[name], a.queries.labels[:, a.queries.level_of_classes(name)])
        for name, values in values_a.items()
        if name in values_b and _can_be_paired(values, values_b[name])
    }
    intervals = {name: interval for name, interval in intervals.items() if interval.classes != 1}
    return _compare_by_group(a, select_joint_metrics(a.metrics), select_joint_metrics(b.metrics), intervals)


def _can_be_paired(first: Floats, second: Floats) -> bool:
    """Return whether both runs have a value at the same queries; a user's metric may have none by the ranking."""
    return bool(np.array_equal(np.isnan(first), np.isnan(second)) and not np.isnan(first).all())


def compare_parts(a: ReportedRun, b: ReportedRun) -> dict[str, dict[str, list[ComparedMetric]]]:
    """Compare the metrics from before the training and those of single heads, see `compare_metrics`."""
    parts_a, parts_b = metrics_by_part(a), metrics_by_part(b)
    names = [name for name in parts_a if name in parts_b and name.startswith(("before", "head "))]
    return {name: _compare_by_group(a, parts_a[name], parts_b[name], {}) for name in names}


def _compare_by_group(
    a: ReportedRun, metrics_a: Mapping[str, float], metrics_b: Mapping[str, float], intervals: Mapping[str, Difference]
) -> dict[str, list[ComparedMetric]]:
    levels = a.queries.levels
    described = {name: describe_metric(name, a.custom_metrics) for name in metrics_a if name in metrics_b}
    # bars of all fractions share their scale, the largest end of an interval; any other metric has its own
    scales = {name: "fractions" if metric.shown_in_percent else metric.label for name, metric in described.items()}
    widths: dict[str, float] = {}
    for name, interval in intervals.items():
        if name in scales:
            widths[scales[name]] = max(widths.get(scales[name], 0.0), abs(interval.low), abs(interval.high))
    groups: dict[str, list[ComparedMetric]] = {group: [] for group in (*levels, MEAN_OF_LEVELS, ALL_LEVELS)}
    for name, metric in described.items():
        width = widths.get(scales[name]) or 1.0
        compared = _compare(metric, metrics_a[name], metrics_b[name], intervals.get(name), width)
        groups[name_group(name, levels)].append(compared)
    return {group: rows for group, rows in groups.items() if rows}


def _compare(
    metric: MetricDescription, value_a: float, value_b: float, interval: Difference | None, width: float
) -> ComparedMetric:
    """Compare two values, with a bar of the interval from -``width`` to ``width`` if there is one."""
    values = (format_metric(value_a, metric), format_metric(value_b, metric))
    compared = ComparedMetric(metric.label, values, _format_difference(value_b - value_a, metric))
    if interval is None:
        return compared
    mean, low, high, _ = interval
    ends = f"{_format_difference(low, metric)} to {_format_difference(high, metric)}"
    shown = (low, high, mean) if metric.higher_is_better else (-high, -low, -mean)
    start, end, point = (round(50 + 50 * value / width, 2) for value in shown)
    return replace(compared, interval=ends, sure=low > 0 or high < 0, bar=(start, end, point))


def _format_difference(difference: float, metric: MetricDescription) -> str:
    """Format a difference with its sign, which is the typographic minus: 0.0123 -> "+1.2"."""
    text = format_metric(abs(difference), metric)
    if text == MISSING or not float(text):
        return text
    return f"{'−' if difference < 0 else '+'}{text}"


def find_hits(table: QueryTable) -> Bools:
    """Return whether the nearest neighbor of each query has the class of the query. -> (Q,)"""
    return compare_classes(table)[:, 0]


def count_outcomes(a: ReportedRun, b: ReportedRun) -> Outcomes:
    """Count the queries that have a positive by the runs in which their nearest neighbor has their class."""
    has_positive = ~np.isnan(score_queries(a.queries).values)
    hits_a, hits_b = (find_hits(run.queries)[has_positive] for run in (a, b))
    selections = (hits_a & hits_b, hits_a & ~hits_b, hits_b & ~hits_a, ~hits_a & ~hits_b)
    return Outcomes(*(int(selected.sum()) for selected in selections))


def choose_changed_queries(
    a: ReportedRun, b: ReportedRun, tiles: Tiles, count: int = 8
) -> dict[str, list[QueryResult]]:
    """Choose up to ``count`` queries that one run gets right and the other wrong, at most one of each class.

    Those whose score changes most come first.
    """
    scores = score_queries(a.queries), score_queries(b.queries)

    def remark(row: int) -> list[str]:
        """Return a line for each run: the score of a query, and the rank of its nearest neighbor of its class."""
        return [
            f"{letter}: {score.describe(row)}, {describe_first_match(run.queries, row)}"
            for letter, run, score in zip("AB", (a, b), scores, strict=True)
        ]

    gains = scores[1].values - scores[0].values
    hits_a, hits_b = find_hits(a.queries), find_hits(b.queries)
    values_by_title = {
        "Right in A, wrong in B": np.where(hits_a & ~hits_b, gains, np.nan),
        "Wrong in A, right in B": np.where(hits_b & ~hits_a, -gains, np.nan),
    }
    return {
        title: [
            show_query(a.queries, row, tiles, remark(row), [b.queries])
            for row in choose_lowest(values, a.queries.labels[:, 0], count)
        ]
        for title, values in values_by_title.items()
    }


def compare_settings(a: ReportedRun, b: ReportedRun) -> list[tuple[str, str, str]]:
    """Return (dotted key, value in A, value in B) of the settings that differ; a dash where a run has no such key."""
    settings_a, settings_b = ({key: str(value) for key, value in flat(run.settings).items()} for run in (a, b))
    return [
        (key, settings_a.get(key, "–"), settings_b.get(key, "–"))
        for key in dict.fromkeys([*settings_a, *settings_b])
        if settings_a.get(key) != settings_b.get(key)
    ]
