"""A paper's table beside what our runs gave."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dml.evaluation.intervals import Interval, mean_interval
from dml.ops.errors import InputError
from dml.run.reproduce import Plan, Run
from dml.run.tables import Cell, Source, Table

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "": lambda values: values[0],
    "mean": statistics.mean,
    "sd": statistics.variance,  # RLL's Table XV prints the variance as SD
}


@dataclass(frozen=True)
class Line:
    """A cell and its reproduction.

    Args:
        cell: what the paper prints.
        values: ours in percent, one for each seed of which all runs are finished.
        runs: those that it takes.
    """

    cell: Cell
    values: tuple[float, ...]
    runs: tuple[Run, ...]

    @property
    def ours(self) -> Interval | None:
        """The mean over the seeds; None before the first is finished."""
        return mean_interval(self.values) if self.values else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in percent points."""
        return None if self.ours is None or self.cell.value is None else self.ours.mean - self.cell.value


def lines(table: Table, plan: Plan) -> list[Line]:
    """One a cell, in the paper's order."""
    return [_line(cell, table.source(cell.row, cell.dataset), plan) for cell in table.cells]


def _line(cell: Cell, source: Source, plan: Plan) -> Line:
    by_seed = list(zip(*(plan.runs(training) for training in source.trainings), strict=True))
    done = [runs for runs in by_seed if all(run.done for run in runs)]
    if cell.value is None or plan.small:  # a dash, or a level that the embedded data lacks: what may not exist
        done = [runs for runs in done if all(source.key(cell) in run.metrics for run in runs)]
    values = [STATISTICS[cell.statistic]([_value(run, source.key(cell)) for run in runs]) for runs in done]
    return Line(cell, tuple(values), tuple(run for runs in by_seed for run in runs))


def _value(run: Run, key: str) -> float:
    if key not in run.metrics:
        raise InputError(f"{run.folder / 'metrics.json'}: no {key}, which the table wants")
    return 100 * run.metrics[key]


def markdown(found: Sequence[Line], title: str) -> str:
    """The table: paper, ours with half the 95 % interval, difference, runs; and below it what is missing."""
    header = ["row", "data set", "metric", "paper", "ours", "difference", "runs"]
    rows = [header, ["---", "---", "---", "---:", "---:", "---:", "---:"], *(_cells(line) for line in found)]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"# {title}\n\n{text}\n\n{_missing(found)}\n"


def _cells(line: Line) -> list[str]:
    cell, ours, decimals = line.cell, line.ours, len(line.cell.printed.partition(".")[2]) or 1
    shown = "" if ours is None else f"{ours.mean:.{decimals}f}"
    if ours is not None and ours.runs > 1:
        shown += f" ± {ours.half_width:.{decimals}f}"
    difference = "" if line.difference is None else f"{line.difference:+.{decimals}f}"
    done = sum(run.done for run in line.runs)
    return [cell.row, cell.dataset, cell.metric, cell.printed or "–", shown, difference, f"{done} of {len(line.runs)}"]


def _missing(found: Iterable[Line]) -> str:
    named: dict[Path, str] = {}
    runs: dict[Path, Run] = {}
    for line in found:
        for run in line.runs:
            runs[run.folder] = run
            named.setdefault(run.folder, f"{line.cell.row} on {line.cell.dataset}")
    seeds: dict[str, list[int]] = {}
    for folder, run in runs.items():
        if not run.done:
            seeds.setdefault(named[folder], []).append(run.seed)
    listed = [f"{name} (seed{'s' * (len(own) > 1)} {', '.join(map(str, own))})" for name, own in seeds.items()]
    said = f"{sum(run.done for run in runs.values())} of {len(runs)} runs are done"
    return f"{said}; missing: {', '.join(listed)}." if listed else f"{said}."


def csv_lines(found: Sequence[Line]) -> list[list[object]]:
    """The same in full, a header first."""
    header = ["paper", "table", "row", "method", "dataset", "metric", "printed", "runs", "mean", "low_95", "high_95"]
    return [[*header, "difference", "folders"], *(_csv_line(line) for line in found)]


def _csv_line(line: Line) -> list[object]:
    cell, ours = line.cell, line.ours
    named = [cell.paper, cell.table, cell.row, cell.method, cell.dataset, cell.metric, cell.printed]
    folders = " ".join(dict.fromkeys(str(run.folder.parent) for run in line.runs))
    if ours is None:
        return [*named, 0, "", "", "", "", folders]
    low, high = ours.mean - ours.half_width, ours.mean + ours.half_width
    return [*named, ours.runs, ours.mean, low, high, line.difference, folders]
