"""The papers' tables: what they print, and which training stands for each of their rows."""

import csv
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from dml.report.provenance import join_facts
from dml.report.statistics import Interval, mean_interval
from dml.runtime.errors import InputError
from dml.runtime.reading import parse_yaml
from dml.studies.experiments import describe_training
from dml.studies.pages import render
from dml.studies.results import Result, Results
from dml.studies.runs import Plan
from dml.studies.study import REFERENCE, Cell, Study, Training, as_list

PAPERS = {"rll": "RLL", "nra": "NRA", "lns": "LNS", "happier": "HAPPIER", "rsk": "RS@k", "hyp": "Hyp-ViT"}
"""The papers' names as pages print them."""

DATASETS = {"cub": "cub200"}
"""The data sets that the papers' numbers and conf/dataset name differently."""

NUMBERS = ("paper_tables.csv", "published_recalls.csv")
"""The files of the papers' numbers. Those of the second have sources, and its tables are lanes."""

TAXA = ("species", "genus", "family", "order", "class", "phylum", "kingdom")
LEVELS_BY_NAME = {name: level for level, name in enumerate(TAXA)} | {"fine": 0, "coarse": 1}


@dataclass(frozen=True)
class PrintedNumber:
    """One number of a table, as its paper prints it: a line of one of the files `NUMBERS`.

    Args:
        paper: key of the paper, one of `PAPERS`.
        table: number of the table in the paper, such as "IV", or a lane, such as "resnet50".
        row: stable key of the row.
        method: name of the row as the paper prints it.
        origin: "true" for the paper's method, an ablation or a second run of it, "retrained" for a baseline that the
            paper ran itself, "false" for a number that the paper quotes; the column "own" of the file.
        dataset: name of the data set in `conf/dataset`.
        backbone, dim, heads, settings: settings of the row as the paper states them; empty if it doesn't state them.
        metric: recall@k, nmi, f1, h_ap, asi, ndcg, sum_wap, ap/LEVEL, map, recall@1/mean, recall@1/sd.
        printed: the number in percent; empty where the paper prints a dash.
        note: remark on what is odd about the number.
        source: paper or repository of the number and where it was read; "" for a number from the paper's own table.
    """

    paper: str
    table: str
    row: str
    method: str
    origin: str
    dataset: str
    backbone: str
    dim: str
    heads: str
    settings: str
    metric: str
    printed: str
    note: str
    source: str = ""

    @property
    def is_quoted(self) -> bool:
        """Whether the paper took the number from another paper."""
        return self.origin == "false"

    @property
    def value(self) -> float | None:
        """The number in percent; None where the paper prints a dash."""
        return float(self.printed) if self.printed else None

    @property
    def statistic(self) -> str:
        """The statistic over other rows that is printed, "mean" or "sd"; "" for the number of one training."""
        name, _, statistic = self.metric.partition("/")
        return "" if name == "ap" else statistic

    @property
    def metric_name(self) -> str:
        """The metric's name in metrics.json, without the prefix of the row's part."""
        from dml.evaluation.names import full_metric_name

        name, _, level = self.metric.partition("/")
        if self.dataset.startswith("dyml"):  # its numbers are means over the benchmarks of the levels
            return f"mean/{'ap' if name == 'map' else name}"
        if name == "ap":
            return f"level{LEVELS_BY_NAME[level]}/ap"
        return full_metric_name(name)


@dataclass(frozen=True)
class Entry:
    """What stands for a row on a data set.

    Args:
        cells: the only training of the row, or those of the rows whose mean or spread it prints.
        differs: sentences that say where the row differs from the paper's protocol, besides what its experiment says.
    """

    cells: tuple[Cell, ...]
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A paper's table: those of its numbers that the paper trained itself.

    A lane is a table whose numbers are of one network, one pretraining and one size of the embedding. It was put
    together here, and each of its numbers has a source.
    """

    paper: str
    name: str
    numbers: tuple[PrintedNumber, ...]

    def __str__(self) -> str:
        return f"{self.paper}-{self.name}"

    @property
    def title(self) -> str:
        """The paper and the number of the table."""
        return f"{PAPERS[self.paper]}, {'Lane' if self.is_lane else 'Table'} {self.name}"

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Each pair (row, data set) once, in the paper's order."""
        return list(dict.fromkeys((number.row, number.dataset) for number in self.numbers))

    @property
    def is_lane(self) -> bool:
        """Whether the table's numbers have sources of their own."""
        return any(number.source for number in self.numbers)

    @property
    def trainings(self) -> list[Training]:
        """The trainings of all rows, each once."""
        return list(dict.fromkeys(cell.training for row in self.rows for cell in self.find_entry(*row).cells))

    def find_entry(self, row: str, dataset: str) -> Entry:
        """Find what stands for a row.

        Raises:
            InputError: if reference/PAPER.yaml has no entry for the row.
        """
        value = read_entries(self.paper).get(self.name, {}).get(row)
        if isinstance(value, Mapping) and "run" not in value:  # one entry for each data set
            value = value.get(dataset)
        if value is None:
            raise InputError(f"table {self}: row {row} on {dataset} has no experiment in reference/{self.paper}.yaml")
        if isinstance(value, list):  # the rows that this one sums up
            entries = [self.find_entry(summed_row, dataset) for summed_row in value]
            cells = tuple(cell for entry in entries for cell in entry.cells)
            return Entry(cells, tuple(sentence for entry in entries for sentence in entry.differs))
        settings = {"run": value} if isinstance(value, str) else value
        training = Training.parse(f"{self.paper}/{settings['run']}")
        differs = tuple(as_list(settings.get("differs", [])))
        return Entry((Cell(dataset, row, training, part=settings.get("part", "")),), differs)

    def make_study(self) -> Study:
        """Make the study that reproduces the table."""
        cells = {cell.key: cell for row in self.rows for cell in self.find_entry(*row).cells}
        return Study(
            name=str(self),
            kind="table",
            cells=tuple(cells.values()),
            content={"table": self},
            metrics=("",),
            keeps_checkpoints=True,
            outputs=Path("outputs/tables"),
        )


@cache
def read_tables() -> tuple[Table, ...]:
    """Read the tables with numbers that the paper trained itself, in the papers' order."""
    trained = (number for number in read_numbers() if not number.is_quoted)
    groups = groupby(trained, key=lambda number: (number.paper, number.table))
    return tuple(Table(paper, name, tuple(numbers)) for (paper, name), numbers in groups)


@cache
def read_numbers() -> tuple[PrintedNumber, ...]:
    """Read every number of every table, quoted ones included."""
    return tuple(number for name in NUMBERS for number in _read_file(REFERENCE / name))


def _read_file(path: Path) -> list[PrintedNumber]:
    with path.open(newline="", encoding="utf-8") as file:
        return [_read_number(line) for line in csv.DictReader(file)]


def _read_number(line: dict[str, str]) -> PrintedNumber:
    dataset, printed, origin = (line.pop(column) for column in ("dataset", "value", "own"))
    return PrintedNumber(dataset=DATASETS.get(dataset, dataset), printed=printed, origin=origin, **line)


@cache
def read_entries(paper: str) -> dict[str, dict[str, Any]]:
    """Read reference/PAPER.yaml -> {table: {row: entry}}; the head of rll.yaml describes an entry."""
    content = parse_yaml((REFERENCE / f"{paper}.yaml").read_text(encoding="utf-8")) or {}
    return {str(table): entries for table, entries in content.items()}


STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "": lambda values: values[0],
    "mean": statistics.mean,
    "sd": statistics.variance,  # RLL's Table XV prints the variance as SD
}
"""The function for each `PrintedNumber.statistic`, of the values of the row's trainings."""


@dataclass(frozen=True)
class Reproduction:
    """A number of a table, and its reproduction.

    Args:
        number: the number that the paper prints.
        cells: the cells whose trainings stand for the number.
        runs: {seed: finished runs of the cells}.
        run_count: number of runs of all cells and seeds.
        is_comparable: whether the runs have the paper's data and network.
    """

    number: PrintedNumber
    cells: tuple[Cell, ...]
    runs: Mapping[int, list[Result]]
    run_count: int
    is_comparable: bool = True

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


def reproduce(table: Table, results: Results, plan: Plan) -> list[Reproduction]:
    """Collect the reproductions of a table's numbers, in the paper's order.

    Raises:
        InputError: if a finished run lacks a metric; those on the embedded data, which has other levels, may.
    """
    reproductions = []
    for number in table.numbers:
        cells, runs = table.find_entry(number.row, number.dataset).cells, dict[int, list[Result]]()
        for row in filter(None, map(results.find_row, cells)):
            for run in row.runs:
                runs.setdefault(run.seed, []).append(run)
        wanted_runs = plan.seeds * len(cells)
        reproduction = Reproduction(number, cells, dict(sorted(runs.items())), wanted_runs, not plan.is_small)
        name = cells[0].find_metric(number.metric_name)
        if reproduction.is_comparable and not all(name in run.metrics for run in reproduction.finished):
            raise InputError(f"{table}: a finished run of {reproduction.name} has no {name}, which the table wants")
        reproductions.append(reproduction)
    return reproductions


def render_table_page(study: Study, results: Results, plan: Plan) -> str:
    """Render a table: its numbers and ours, with half the 95 % interval, and how many runs are done."""
    table: Table = study.content["table"]
    reproductions = reproduce(table, results, plan)
    finished = {(run.configuration, run.seed) for reproduction in reproductions for run in reproduction.finished}
    return render(
        "table.md.j2",
        table=table,
        departures=[*(["smoke on emoji"] if plan.is_small else []), *plan.departures],
        is_small=plan.is_small,
        reproductions=reproductions,
        facts=join_facts({reproduction.name: _describe_row(reproduction, plan) for reproduction in reproductions}),
        finished=len(finished),
        run_count=plan.seeds * len(table.trainings),
    )


def csv_rows(table: Table, results: Results, plan: Plan) -> list[list[object]]:
    """Return the rows of a CSV file of a table in full precision, the header first."""
    header = ["paper", "table", "row", "method", "dataset", "metric", "printed", "runs", "mean", "low_95", "high_95"]
    rows: list[list[object]] = [[*header, "difference", "configurations"]]
    for reproduction in reproduce(table, results, plan):
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
    return describe_training(plan.list_runs(reproduction.cells[0].training)[0].training, reproduction.cells[0].heads)
