"""A paper's table beside the results of finished runs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dml.report.provenance import join_facts
from dml.report.statistics import Interval, mean_interval
from dml.runtime.errors import InputError
from dml.studies.experiments import describe_training
from dml.studies.pages import render
from dml.studies.paper_tables import PrintedNumber, Table
from dml.studies.results import Result, Rows
from dml.studies.runs import Plan
from dml.studies.study import Cell, Study

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "": lambda values: values[0],
    "mean": statistics.mean,
    "sd": statistics.variance,  # RLL's Table XV prints the variance as SD
}
"""The function for each `PrintedNumber.statistic`, of the values of the row's trainings."""


@dataclass(frozen=True)
class Reproduction:
    """A trained number of a table, and its reproduction."""

    number: PrintedNumber  # the number that the paper prints
    cells: tuple[Cell, ...]  # the cells whose trainings stand for the number
    runs: Mapping[int, list[Result]]  # finished runs of the cells, by seed
    run_count: int  # number of runs of all cells and seeds
    is_comparable: bool = True  # whether the runs have the paper's data and network

    @property
    def name(self) -> str:
        """The row and the data set of the number."""
        return f"{self.number.row} on {self.number.dataset}"

    @property
    def finished(self) -> list[Result]:
        """All finished runs."""
        return [run for runs in self.runs.values() for run in runs]

    @property
    def values(self) -> list[float]:
        """The reproduced numbers in percent, one for each seed of which all runs are finished and have the metric."""
        name, summarize = self.cells[0].find_metric(self.number.metric_name), STATISTICS[self.number.statistic]
        values = [[100 * run.metrics[name] for run in runs if name in run.metrics] for runs in self.runs.values()]
        return [summarize(seed_values) for seed_values in values if len(seed_values) == len(self.cells)]

    @property
    def interval(self) -> Interval | None:
        """The mean over the seeds with its interval; None before the first seed is finished."""
        return mean_interval(self.values) if self.values else None

    @property
    def difference(self) -> float | None:
        """The reproduced mean less the printed number, in percent points; None if they can't be compared."""
        if self.interval is None or self.number.value is None or not self.is_comparable:
            return None
        return self.interval.mean - self.number.value

    def format(self, value: float | None, sign: str = "") -> str:
        """Format a value with the decimals of the printed number; "" for None."""
        decimals = len(self.number.printed.partition(".")[2]) or 1
        return "" if value is None else f"{value:{sign}.{decimals}f}"


def reproduce(table: Table, rows: Rows, plan: Plan) -> list[Reproduction]:
    """Collect the reproductions of a table's trained numbers, in the paper's order."""
    reproductions = []
    for number in table.trained:
        cells, runs = table.find_cells(number.row, number.dataset), dict[int, list[Result]]()
        for run in (run for cell in cells if cell.key in rows for run in rows[cell.key].runs):
            runs.setdefault(run.seed, []).append(run)
        reproduction = Reproduction(
            number, cells, dict(sorted(runs.items())), plan.seeds * len(cells), not plan.is_small
        )
        name = cells[0].find_metric(number.metric_name)
        if reproduction.is_comparable and not all(name in run.metrics for run in reproduction.finished):
            raise InputError(f"{table}: a finished run of {reproduction.name} has no {name}, which the table wants")
        reproductions.append(reproduction)
    return reproductions


def render_table_page(study: Study, rows: Rows, plan: Plan) -> str:
    """Render a table: all its numbers, and ours, with half the 95 % interval and how many runs are done."""
    table: Table = study.content["table"]
    reproductions = reproduce(table, rows, plan)
    finished = {(run.configuration, run.seed) for reproduction in reproductions for run in reproduction.finished}
    return render(
        "table.md.j2",
        table=table,
        departures=[*(["smoke on emoji"] if plan.is_small else []), *plan.departures],
        is_small=plan.is_small,
        reproduced={reproduction.number: reproduction for reproduction in reproductions},
        facts=join_facts({reproduction.name: _describe_row(reproduction, plan) for reproduction in reproductions}),
        finished=len(finished),
        run_count=plan.seeds * len(table.trainings),
    )


def csv_rows(table: Table, found: Rows, plan: Plan) -> list[list[object]]:
    """Return the rows of a CSV file of a table in full precision, the header first."""
    header = ["paper", "table", "row", "method", "dataset", "metric", "printed", "runs", "mean", "low_95", "high_95"]
    rows: list[list[object]] = [[*header, "difference", "configurations"]]
    for reproduction in reproduce(table, found, plan):
        number, interval, values = reproduction.number, reproduction.interval, list[object]([0, "", "", ""])
        if interval is not None:
            values = [interval.runs, interval.mean]
            values += [interval.mean - interval.half_width, interval.mean + interval.half_width]
        names = [number.paper, number.table, number.row, number.method, number.dataset, number.metric, number.printed]
        configurations = " ".join(dict.fromkeys(run.configuration for run in reproduction.finished))
        rows.append(
            [*names, *values, "" if reproduction.difference is None else reproduction.difference, configurations]
        )
    return rows


def _describe_row(reproduction: Reproduction, plan: Plan) -> Mapping[str, str]:
    """Describe the models and data behind a number: those of its finished runs, else those configured."""
    if reproduction.finished:
        return reproduction.finished[0].facts
    cell = reproduction.cells[0]
    return describe_training(plan.list_runs(cell.training)[0].training, cell.heads)
