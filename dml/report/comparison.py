"""Finished runs compared: the metrics of each configuration over its seeds, and differences to the best one."""

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dml.evaluation.metric import MetricName
from dml.evaluation.names import MetricDescription, describe_metric, describe_stored_metrics, format_value
from dml.evaluation.per_query import read_queries
from dml.report.provenance import describe_measurement, join_facts, merge_facts
from dml.report.statistics import RESAMPLES, ClassSums, Interval, mean_interval, sum_by_class
from dml.runtime.configuration import flat, is_below, key_of
from dml.runtime.errors import InputError, suggest
from dml.runtime.run_folder import RUN_KEYS, RunFolder, folders_below
from dml.runtime.text import markdown_table, printable

logger = logging.getLogger(__name__)

SEED = "seed"
NOT_METRICS = ("epoch", "step")
"""Names of numbers in metrics.json that are no results."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, with the facts of `describe_measurement`."""

    folder: Path
    config: dict[str, Any]  # by dotted key; values that follow from the seed are interpolations
    named: dict[str, Any]  # choices of the groups and overridden values by key, by which users tell runs apart
    metrics: dict[str, float]  # the numbers in metrics.json
    custom_metrics: tuple[MetricDescription, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def configuration(self) -> str:
        """The configuration without the seed, as text."""
        return json.dumps({key: value for key, value in self.config.items() if key != SEED}, sort_keys=True)


@dataclass(frozen=True)
class ConfigurationResult:
    """The metrics of one configuration over its seeds, {name in metrics.json: mean}."""

    name: str  # the settings that tell the configuration from the others, such as "loss=rll"
    metrics: dict[str, Interval]
    custom_metrics: tuple[MetricDescription, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()

    @property
    def escaped_name(self) -> str:
        """The name as Markdown shows it: nothing in it is read as code or HTML."""
        return _escape(self.name)


def find_runs(folders: Iterable[Path]) -> list[FinishedRun]:
    """Read the finished runs in some folders, at any depth; a folder without any raises InputError."""
    finished: list[FinishedRun] = []
    paths = list(folders)
    for folder in paths:
        for run in folders_below(folder):
            try:
                if _is_compared(run, folder) and run.is_finished:
                    finished.append(_read(run))
            except InputError as error:
                if run.path == folder:
                    raise
                logger.warning("left out: %s", printable(error))
    for folder in paths:
        is_empty = folder.is_dir() and not folders_below(folder)  # a glob matches files, too
        if is_empty or not finished:
            raise InputError(f"{folder}: no finished run in it; a run's folder holds metrics.json and .hydra/")
    return finished


def find_unfinished(folders: Iterable[Path]) -> list[Path]:
    """Return the folders of the runs, at any depth, that are running, have failed or were interrupted."""
    unfinished = []
    for folder in folders:
        for run in folders_below(folder):
            with suppress(InputError):  # it is damaged, of which `find_runs` warns
                if _is_compared(run, folder) and not run.is_finished:
                    unfinished.append(run.path)
    return unfinished


def _is_compared(run: RunFolder, folder: Path) -> bool:
    """Tell whether a run is compared: the evaluation of a checkpoint is, if its own folder is named."""
    return run.path == folder or not run.is_evaluation


def _read(folder: RunFolder) -> FinishedRun:
    values = flat(folder.config)
    choices = {group: choice for group, choice in folder.choices.items() if group not in RUN_KEYS}
    overridden = {key_of(override) for override in folder.overrides}
    metrics = folder.metrics()
    added: dict[str, Any] = {}
    if folder.is_evaluation:  # of one run two checkpoints may be tested
        path = next((text.partition("=")[2] for text in folder.overrides if key_of(text) == "checkpoint"), "")
        added["checkpoint"] = Path(path.strip("'\"")).name
    overrides = {key: value for key, value in values.items() if is_below(key, overridden - {*choices})}
    return FinishedRun(
        folder.path,
        config=values | added,
        named=choices | overrides | added,
        metrics={
            name: value for name, value in metrics.items() if isinstance(value, int | float) and name not in NOT_METRICS
        },
        custom_metrics=describe_stored_metrics(folder.config),
        facts=describe_measurement(metrics, folder.config),
    )


def compare(runs: Sequence[FinishedRun]) -> list[ConfigurationResult]:
    """Return a result for each configuration: runs that differ in nothing but the seed are one configuration.

    Two runs of one configuration and one seed raise InputError: they are no independent measurements.
    """
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        group, seed = groups.setdefault(run.configuration, []), run.config.get(SEED)
        if same := [other.folder for other in group if other.config.get(SEED) == seed]:
            raise InputError(f"{run.folder}: the same configuration and seed={seed} as {same[0]}; give one of them")
        group.append(run)
    names = _name_configurations([group[0] for group in groups.values()])
    return [
        ConfigurationResult(
            name,
            {
                metric: mean_interval([run.metrics[metric] for run in group])
                for metric in group[0].metrics
                if all(metric in run.metrics for run in group)
            },
            group[0].custom_metrics,
            merge_facts(run.facts for run in group),
            tuple(run.folder for run in group),
        )
        for name, group in zip(names, groups.values(), strict=True)
    ]


def _name_configurations(runs: Sequence[FinishedRun]) -> list[str]:
    """Name the configuration of each run by those choices and overridden values that are not the same in all runs."""
    keys = dict.fromkeys(key for run in runs for key in run.named if key != SEED)
    values = [{key: str(run.named.get(key, run.config.get(key, ""))) for key in keys} for run in runs]
    differing = [key for key in keys if len({value[key] for value in values}) > 1] or ["dataset", "loss"]
    # A configuration may lack a key, such as a parameter of another loss.
    names = [", ".join(f"{key}={value[key]}" for key in differing if value[key]) for value in values]
    # Folders tell apart what differs in something else, such as conf/ itself, and a run from its own test.
    return [
        (name if names.count(name) == 1 else f"{name} ({printable(run.folder)})") if name else printable(run.folder)
        for name, run in zip(names, runs, strict=True)
    ]


def markdown(rows: Sequence[ConfigurationResult], metrics: Sequence[str]) -> str:
    """Format a Markdown table of some metrics, the best configuration by the first metric on top.

    Fractions are in percent, counts and other values as they are. A cell is the mean over the seeds ± half the 95 %
    interval (standard deviation of one run). A metric that no configuration has raises InputError.
    """
    known = {name for row in rows for name in row.metrics}
    for metric in metrics:
        if metric not in known:
            raise InputError(f"metric {metric}: no run has it{suggest(metric, known)}")
    custom = [metric for row in rows for metric in row.custom_metrics]
    described = [describe_metric(name, custom) for name in metrics]
    lines = []
    for row in sort_results(rows, metrics[0]):
        cells = [_format_cell(row.metrics.get(name), metric) for name, metric in zip(metrics, described, strict=True)]
        lines.append([row.escaped_name, str(max(value.runs for value in row.metrics.values())), *cells])
    heads = [_escape(_name_column(name, custom)) for name in metrics]
    return markdown_table(["run", "seeds", *heads], lines, right=range(1, 2 + len(metrics))) + "\n"


def sort_results(rows: Sequence[ConfigurationResult], name: str) -> list[ConfigurationResult]:
    """Sort results by a metric, the best first and those without a value of it last."""
    metric = describe_metric(name, [metric for row in rows for metric in row.custom_metrics])

    def rank(row: ConfigurationResult) -> float:
        value = row.metrics[name].mean if name in row.metrics else math.nan
        return math.inf if math.isnan(value) else -value if metric.higher_is_better else value

    return sorted(rows, key=rank)


def _name_column(name: str, custom: Sequence[MetricDescription]) -> str:
    """Return the name of a metric in metrics.json, in which a custom metric is called by its label."""
    if MetricName.parse(name).family not in {metric.name for metric in custom}:
        return name
    scope, slash, _ = name.rpartition("/")
    return f"{scope}{slash}{describe_metric(name, custom).label}"


def _escape(name: str) -> str:
    """Escape a name for Markdown: nothing in it is read as code or HTML."""
    text = re.sub(r"\\(?=[!-/:-@[-`{-~])", r"\\\\", printable(name))
    return re.sub(r"[`<]", r"\\\g<0>", text)


def _format_cell(value: Interval | None, metric: MetricDescription) -> str:
    if value is None or value.runs == 1 or math.isnan(value.mean):
        return format_value(None if value is None else value.mean, metric)
    mean, *spread = (format_value(part, metric) for part in (value.mean, value.half_width, value.deviation))
    return f"{mean} ± {spread[0]} ({spread[1]})"


def csv_lines(rows: Sequence[ConfigurationResult]) -> list[list[Any]]:
    """Return the header and the lines of a CSV file: one line for each metric of each configuration, unrounded."""
    header = ["run", "metric", "runs", "mean", "standard_deviation", "low_95", "high_95"]
    return [header] + [
        [row.name, metric, *value[:3], value.mean - value.half_width, value.mean + value.half_width]
        for row in rows
        for metric, value in row.metrics.items()
    ]


def describe_facts(rows: Sequence[ConfigurationResult]) -> str:
    """Return a sentence for each fact of `describe_measurement`, with the configurations that have another value."""
    facts = {row.escaped_name: {fact: printable(value) for fact, value in row.facts.items()} for row in rows}
    return f"{join_facts(facts)}\n"


def describe_differences(rows: Sequence[ConfigurationResult], metric: str) -> str:
    """Return a Markdown table of the differences to the best configuration, with intervals over the test classes.

    The interval holds 95 % of the means of `RESAMPLES` draws of whole classes with replacement, the same classes for
    both configurations. The metrics are means over the seeds. For one configuration, or if a run has no value of the
    metric for each query, it is "".
    """
    best, *others = sort_results(rows, metric)
    tested = [_read_tests(row, metric) for row in (best, *others)]
    if not others or None in tested:
        return ""
    (classes, best_sums), *other_tests = [test for test in tested if test]
    if any((names, sums.counts) != (classes, best_sums.counts) for names, sums in other_tests):
        return f"{metric}: no differences over the test classes, whose queries aren't the same for all runs\n"
    description = describe_metric(metric, best.custom_metrics)
    lines = []
    for row, (_, sums) in zip(others, other_tests, strict=True):
        numbers = (sums.mean(metric) - best_sums.mean(metric), *sums.interval(metric, best_sums))
        difference, low, high = (format_value(number, description) for number in numbers)
        lines.append([row.escaped_name, f"{difference} [{low}, {high}]"])
    heading = f"{metric}, difference to {best.escaped_name}" + ", in points" * description.shown_in_percent
    note = (
        f"The interval holds 95 % of {RESAMPLES:,} draws of the {len(classes):,} classes of the queries, the "
        "same for both runs.\n"
    )
    return "\n\n".join((markdown_table(["run", heading], lines, right=(1,)), note))


def _read_tests(row: ConfigurationResult, metric: str) -> tuple[list[str], ClassSums] | None:
    """Return the tested classes, and the metric summed by class for each seed; None if the runs don't have these."""
    tested: list[tuple[list[str], list[int]]] = []
    sums_of_seeds: list[list[float]] = []
    for folder in row.folders:
        file = RunFolder(folder).queries_file
        queries = read_queries(file) if file.exists() else None
        if queries is None or metric not in queries.metrics:  # NMI and the like are of all queries together
            return None
        level, values = queries.level_of_classes(metric), queries.metrics[metric]
        labels = queries.labels[:, level]
        names = [queries.class_name(label, level) for label in np.unique(labels[~np.isnan(values)]).tolist()]
        counts, sums = sum_by_class(labels, {metric: values})
        tested.append((names, counts))
        sums_of_seeds.append(sums[metric])
    if not tested or any(other != tested[0] for other in tested):
        return None
    names, counts = tested[0]
    return names, ClassSums(counts, {metric: sums_of_seeds})
