"""The tables of a report's metrics, and the metrics in large type above them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES, MetricName
from dml.evaluation.names import describe_metric, format_value, is_joint_metric, split_parts
from dml.report.run import ReportedRun

HEADLINES = ("level0/recall@1", "level0/map@r", "h_ap", "level0/nmi")


@dataclass(frozen=True)
class MetricTable:
    """A table of metrics, whose rows are grouped by level, with sentences below it."""

    columns: Sequence[str]
    groups: Mapping[str, Mapping[str, Sequence[str]]]  # {level, or "" for all together: {name of the row: cells}}
    notes: Sequence[str] = ()


def make_metric_tables(run: ReportedRun) -> list[MetricTable]:
    """Make a table of the metrics of each level, and one of those of all levels together, such as H-AP, if several."""
    trained = "after training" if run.is_trained else "the vectors"
    whole = "all heads" if any(MetricName.parse(name).heads for name in run.metrics) else trained
    rows = {
        row: {name: value for name, value in part.items() if is_joint_metric(name, value)}
        for row, part in split_parts(run.metrics, "before training", whole).items()
    }
    names = dict.fromkeys(name for values in rows.values() for name in values)
    scopes = {f"level{i}": level for i, level in enumerate(run.queries.levels)} | {"mean": "mean of the levels"}
    groups = {
        group: [name for name in names if name.rpartition("/")[0] == scope]
        for scope, group in (scopes | {"": ""}).items()
    }
    joint = groups.pop("")
    if len(run.queries.levels) == 1 and any(groups.values()):  # H-AP is then AP, and ASI and NDCG say nothing more
        joint = []
    tables = [_make_table(rows, groups, run, _note_skipped_queries(run)), _make_table(rows, {"": joint}, run)]
    return [table for table in tables if table.columns]


def _make_table(
    rows: Mapping[str, Mapping[str, float]], groups: Mapping[str, Iterable[str]], run: ReportedRun, *notes: str
) -> MetricTable:
    """Make the table of some metrics, {group: names in metrics.json}; one of several levels is one column."""
    described = {name: describe_metric(name, run.custom_metrics) for names in groups.values() for name in names}
    columns = {metric.label: metric for metric in described.values()}
    cells: dict[str, dict[str, list[str]]] = {}
    for group, names in groups.items():
        name_by_label = {described[name].label: name for name in names}
        for row, values in rows.items():
            if any(name in values for name in names):
                cells.setdefault(group, {})[row] = [
                    format_value(values.get(name_by_label.get(label, "")), metric) for label, metric in columns.items()
                ]
    counts = [label for label, metric in columns.items() if not metric.shown_in_percent]
    all_notes = (*notes, f"{', '.join(counts)}: not in percent." if counts else "")
    return MetricTable([*columns], cells, [note for note in all_notes if note])


def _note_skipped_queries(run: ReportedRun) -> str:
    """Return a sentence with the number of queries without a positive at each level; "" if all have one."""
    counts = {
        level: int(run.metrics.get(f"level{i}/{QUERIES_WITHOUT_POSITIVES}", 0))
        for i, level in enumerate(run.queries.levels)
    }
    skipped = [f"{count:,} at level {level}" for level, count in counts.items() if count]
    return f"Queries without a positive, which the means leave out: {', '.join(skipped)}." if skipped else ""


def choose_headlines(run: ReportedRun) -> dict[str, tuple[str, str]]:
    """Return {label: (value, value before the training)} of those metrics of `HEADLINES` that the run has."""
    has_levels = len(run.queries.levels) > 1 or "level0/recall@1" not in run.metrics
    names = [name for name in HEADLINES if name in run.metrics and (has_levels or name != "h_ap")]
    described = {name: describe_metric(name, run.custom_metrics) for name in names}
    return {
        metric.label: (format_value(run.metrics[name], metric), format_value(run.metrics.get(f"raw/{name}"), metric))
        for name, metric in described.items()
    }
