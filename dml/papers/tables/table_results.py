"""A paper's table beside the results of finished runs."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dml.evaluation.names import MetricName, split_head_names
from dml.ops.errors import InputError
from dml.ops.text.text_tables import markdown_table
from dml.papers.plans import Plan, PlannedRun
from dml.papers.tables.paper_tables import Cell, Source, Table
from dml.papers.training_facts import describe_runs
from dml.report.provenance import join_facts
from dml.report.statistics import Interval, mean_interval

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "": lambda values: values[0],
    "mean": statistics.mean,
    "sd": statistics.variance,  # RLL's Table XV prints the variance as SD
}
"""The function for each `Cell.statistic`, of the values of the row's trainings."""

SPREAD_NOTE = "What the paper prints as SD is the sample variance, and so are ours."


@dataclass(frozen=True)
class CellResult:
    """A cell of a table, and its reproduction.

    Args:
        cell: the number that the paper prints.
        values: the reproduced numbers in percent, one for each seed of which all runs are finished.
        runs: all runs that the cell takes, finished or not.
        metric: name of the reproduced metric in metrics.json.
        is_comparable: whether the runs have the paper's data and network.
    """

    cell: Cell
    values: tuple[float, ...]
    runs: tuple[PlannedRun, ...]
    metric: str
    is_comparable: bool = True

    @property
    def interval(self) -> Interval | None:
        """The mean over the seeds with its interval; None before the first seed is finished."""
        return mean_interval(self.values) if self.values else None

    @property
    def difference(self) -> float | None:
        """The reproduced mean less the printed number, in percent points; None if they can't be compared."""
        if self.interval is None or self.cell.value is None or not self.is_comparable:
            return None
        return self.interval.mean - self.cell.value


def collect_results(table: Table, plan: Plan) -> list[CellResult]:
    """Collect the results of a table's finished runs, one for each cell in the paper's order.

    Raises:
        InputError: if a finished run lacks a metric that the table prints.
    """
    return [_collect_result(cell, table.find_source(cell.row, cell.dataset), plan) for cell in table.cells]


def format_markdown(results: Sequence[CellResult], title: str) -> str:
    """Format a page: the table, with half the 95 % interval behind each mean, and the runs that are missing."""
    header = ["row", "data set", "metric", "paper", "ours", "difference", "runs"]
    table = markdown_table(header, map(_markdown_cells, results), right=(3, 4, 5, 6))
    facts = join_facts({_name_row(result.cell): _describe_row(result) for result in results})
    has_spread = any(result.cell.statistic == "sd" for result in results)
    notes = f"{SPREAD_NOTE}\n\n" if has_spread else ""
    return f"# {title}\n\n{table}\n\n{facts}\n\n{notes}{_describe_lane(results)}{_missing_runs(results)}\n"


def csv_rows(results: Iterable[CellResult]) -> list[list[object]]:
    """Return the rows of a CSV file of the results in full precision, the header first."""
    header = ["paper", "table", "row", "method", "dataset", "metric", "printed", "runs", "mean", "low_95", "high_95"]
    return [[*header, "difference", "folders"], *map(_csv_row, results)]


def _collect_result(cell: Cell, source: Source, plan: Plan) -> CellResult:
    runs_by_seed = list(zip(*(plan.list_runs(training) for training in source.trainings), strict=True))
    finished = [runs for runs in runs_by_seed if all(run.is_finished for run in runs)]
    metric = source.metric_name(cell)
    if cell.value is None or plan.is_small:  # the metric of a dash, or of a level that emoji lacks, may be missing
        finished = [runs for runs in finished if all(metric in run.metrics for run in runs)]
    summarize = STATISTICS[cell.statistic]
    values = [summarize([_read_percent(run, metric) for run in runs]) for runs in finished]
    every_run = tuple(run for runs in runs_by_seed for run in runs)
    return CellResult(cell, tuple(values), every_run, metric, is_comparable=not plan.is_small)


def _read_percent(run: PlannedRun, metric: str) -> float:
    if metric not in run.metrics:
        raise InputError(f"{run.folder / 'metrics.json'}: no {metric}, which the table wants")
    return 100 * run.metrics[metric]


def _markdown_cells(result: CellResult) -> list[str]:
    cell, interval, decimals = result.cell, result.interval, len(result.cell.printed.partition(".")[2]) or 1
    mean = "" if interval is None else f"{interval.mean:.{decimals}f}"
    if interval is not None and interval.runs > 1:
        mean += f" ± {interval.half_width:.{decimals}f}"
    difference = "" if result.difference is None else f"{result.difference:+.{decimals}f}"
    finished = f"{sum(run.is_finished for run in result.runs)} of {len(result.runs)}"
    return [cell.row, cell.dataset, cell.metric, cell.printed or "–", mean, difference, finished]


def _describe_lane(results: Iterable[CellResult]) -> str:
    """Return paragraphs on what the numbers of a lane can be compared with, and their sources; "" for other tables."""
    cells = [result.cell for result in results if result.cell.source]
    if not cells:
        return ""
    lanes = dict.fromkeys(f"{cell.backbone}, {cell.dim} dimensions" for cell in cells)
    sources = dict.fromkeys(cell.source for cell in cells)
    note = f"Compare only inside a lane, here {'; '.join(lanes)}."
    return f"{note}\n\nSources of the paper's numbers: {'; '.join(sources)}.\n\n"


def _name_row(cell: Cell) -> str:
    return f"{cell.row} on {cell.dataset}"


def _describe_row(result: CellResult) -> dict[str, str]:
    """Describe the models and data behind a row's numbers: those of its finished runs, else those configured."""
    runs = [run for run in result.runs if run.is_finished] or result.runs[:1]
    heads = MetricName.parse(result.metric).heads
    return describe_runs(runs, split_head_names(heads) if heads else ())


def _missing_runs(results: Iterable[CellResult]) -> str:
    """Return a sentence on how many runs are done, and which row's runs with which seeds are missing."""
    names: dict[Path, str] = {}
    runs: dict[Path, PlannedRun] = {}
    for result in results:
        for run in result.runs:
            runs[run.folder] = run
            names.setdefault(run.folder, _name_row(result.cell))
    seeds_by_name: dict[str, list[int]] = {}
    for folder, run in runs.items():
        if not run.is_finished:
            seeds_by_name.setdefault(names[folder], []).append(run.seed)
    missing = [
        f"{name} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})" for name, seeds in seeds_by_name.items()
    ]
    sentence = f"{sum(run.is_finished for run in runs.values())} of {len(runs)} runs are done"
    return f"{sentence}; missing: {', '.join(missing)}." if missing else f"{sentence}."


def _csv_row(result: CellResult) -> list[object]:
    cell, interval = result.cell, result.interval
    names = [cell.paper, cell.table, cell.row, cell.method, cell.dataset, cell.metric, cell.printed]
    folders = " ".join(dict.fromkeys(str(run.folder.parent) for run in result.runs))
    if interval is None:
        return [*names, 0, "", "", "", "", folders]
    low, high = interval.mean - interval.half_width, interval.mean + interval.half_width
    return [*names, interval.runs, interval.mean, low, high, result.difference, folders]
