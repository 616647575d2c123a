"""The tables of metrics that a run prints."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from dml.evaluation.metric import Metric
from dml.evaluation.printed_metrics.metric_descriptions import MetricDescription, describe_metric, format_value
from dml.evaluation.printed_metrics.metric_names import (
    HEADS,
    PCA,
    RERANKED,
    MetricName,
    find_head_sets,
    find_rerankings,
    format_chosen_heads,
    format_heads,
    format_reranking,
    is_joint_metric,
)
from dml.ops.errors import InputError
from dml.ops.escaping import printable

NUMBER_WIDTH = 4
"""Characters of a percentage with a decimal, such as 61.8."""
NAME_WIDTH = 5
"""Fewest characters of a line of a name that is folded."""


def metric_table(
    rows: Mapping[str, Mapping[str, float]],
    *,
    levels: Sequence[str] = ("finest",),
    metrics: Sequence[str] = ("recall@1", "recall@2", "recall@4", "recall@8", "nmi"),
    title: str | None = None,
    custom: Sequence[Metric | MetricDescription] = (),
) -> Table:
    """Make a table of metrics in percent, with a line for each row and a column for each metric.

    A metric that a row lacks is a dash. A line below the table names the metrics that are not shown in percent. Five
    metrics fit 80 columns.

    Args:
        rows: {name of the row: metrics as `dml.evaluation.evaluate` returns them}.
        levels: names of level 0, 1, ...; several levels become sections of the table. An empty sequence is for metrics
            of all levels together, such as h_ap.
        metrics: names of the metrics, without their level.
        title: title above the table.
        custom: custom metrics, whose labels and units the table uses.

    Raises:
        InputError: if there are no rows.
    """
    if not rows:
        raise InputError("metric_table: no rows to show")
    described = {metric: describe_metric(metric, custom) for metric in metrics}
    table = Table(
        box=box.SIMPLE_HEAD,
        title=Text(printable(title)) if title else None,
        title_justify="left",
        caption=_caption(described.values()),
        caption_justify="left",
    )
    if len(levels) > 1:
        table.add_column("level", overflow="fold", min_width=NAME_WIDTH, style="bold")
    table.add_column("%", overflow="fold", min_width=NAME_WIDTH)
    for metric in metrics:
        label = printable(described[metric].label)
        # no number is cut, however narrow the console is: long names are folded instead
        table.add_column(Text(label), justify="right", no_wrap=True, min_width=max(len(label), NUMBER_WIDTH))
    for i, level in enumerate(levels or [""]):
        prefix = f"level{i}/" if levels else ""
        for j, (name, values) in enumerate(rows.items()):
            head = [level if j == 0 else ""] if len(levels) > 1 else []
            cells = (_format_cell(values.get(prefix + metric), described[metric]) for metric in metrics)
            table.add_row(*(Text(printable(cell)) for cell in (*head, name)), *cells)
        table.add_section()
    return table


def summary_table(
    metrics: Mapping[str, Any], levels: Sequence[str], heads: Sequence[str], custom: Sequence[Metric] = ()
) -> Table:
    """Make the table of a test's metrics: before the training, of each head, of all heads together, and re-ranked.

    Args:
        metrics: contents of metrics.json.
        levels: names of level 0, 1, ...
        heads: names of the model's heads.
        custom: custom metrics, whose labels and units the table uses.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    if before := _select_prefix(metrics, "raw/"):
        rows["before"] = before
        if projected := _select_prefix(before, f"{PCA}/"):
            rows["before, PCA"] = projected
    for name in find_head_sets(metrics) if len(heads) > 1 else ():
        rows[format_heads(name)] = _select_prefix(metrics, f"{HEADS}/{name}/")
    rows[format_chosen_heads(metrics.get("chosen_heads")) or ", ".join(heads)] = metrics
    for name in find_rerankings(metrics):
        rows[format_reranking(name)] = _select_prefix(metrics, f"{RERANKED}/{name}/")
    if level_metrics := _choose_level_metrics(metrics, custom):
        return metric_table(rows, levels=levels, metrics=level_metrics, custom=custom)
    return metric_table(rows, levels=(), metrics=_hierarchical_metrics(metrics), custom=custom)


def choose_first_metric(metrics: Mapping[str, Any]) -> str | None:
    """Return the name of the metric that stands first in `summary_table`; None without any."""
    names = [f"level0/{name}" for name in _choose_level_metrics(metrics)] + _hierarchical_metrics(metrics)
    return names[0] if names else None


def _choose_level_metrics(metrics: Mapping[str, Any], custom: Sequence[Metric] = ()) -> list[str]:
    """Return metrics that fit 80 columns: up to four of recall@k, then the user's metrics, then map@r, nmi and ap.

    Without any of these they are the first six of a level.
    """
    names = [
        name.removeprefix("level0/")
        for name, value in metrics.items()
        if name.startswith("level0/") and is_joint_metric(name, value)
    ]
    recalls = [name for name in names if name.startswith("recall@")][:4]
    custom_names = {metric.name for metric in custom}
    more = [name for name in names if MetricName.parse(name).family in custom_names]
    more += [name for name in ("map@r", "nmi", "ap") if name in names]
    return recalls + more[: 6 - len(recalls)] or names[:6]


def _hierarchical_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics of all levels together."""
    return [name for name, value in metrics.items() if "/" not in name and is_joint_metric(name, value)]


def _select_prefix(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the metrics whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def _caption(metrics: Iterable[MetricDescription]) -> Text | None:
    """Return a line that names the metrics which are not shown in percent; None if all are."""
    labels = [metric.label for metric in metrics if not metric.shown_in_percent]
    return Text(printable(f"not in percent: {', '.join(labels)}")) if labels else None


def _format_cell(value: float | None, metric: MetricDescription) -> str:
    return "–" if value is None else format_value(value, metric)
