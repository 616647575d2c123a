"""The papers' tables: what they print, and which training stands for each of their rows."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from dml.runtime.reading import parse_yaml
from dml.studies.study import REFERENCE, Cell, Study, Training

PAPERS = {"rll": "RLL", "nra": "NRA", "lns": "LNS", "happier": "HAPPIER"}
"""The papers' names as pages print them."""

DATASETS = {"cub": "cub200"}
"""The data sets that the papers' numbers and conf/dataset name differently."""

TAXA = ("species", "genus", "family", "order", "class", "phylum", "kingdom")
LEVELS_BY_NAME = {name: level for level, name in enumerate(TAXA)} | {"fine": 0, "coarse": 1}


@dataclass(frozen=True)
class PrintedNumber:
    """One number of a table, as its paper prints it: a line of reference/paper_tables.csv."""

    paper: str  # key of the paper, one of `PAPERS`
    table: str  # number of the table in the paper, such as "IV"
    row: str  # stable key of the row
    method: str  # name of the row as the paper prints it
    origin: str  # "true": the paper's method; "retrained": a baseline that it ran; "false": a number that it quotes
    dataset: str
    backbone: str  # as the paper states it, like dim, heads and settings; empty if it doesn't
    dim: str
    heads: str
    settings: str
    metric: str  # recall@k, nmi, f1, h_ap, asi, ndcg, sum_wap, ap/LEVEL, map, recall@1/mean, recall@1/sd
    printed: str  # in percent; empty where the paper prints a dash
    note: str

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
        from dml.evaluation.metric import full_metric_name

        name, _, level = self.metric.partition("/")
        if self.dataset.startswith("dyml"):  # its numbers are means over the benchmarks of the levels
            return f"mean/{'ap' if name == 'map' else name}"
        if name == "ap":
            return f"level{LEVELS_BY_NAME[level]}/ap"
        return full_metric_name(name)


@dataclass(frozen=True)
class Table:
    """A paper's table: all of its numbers, of which those that the paper quotes have no training."""

    paper: str
    name: str
    numbers: tuple[PrintedNumber, ...]

    def __str__(self) -> str:
        return f"{self.paper}-{self.name}"

    @property
    def title(self) -> str:
        """The paper and the number of the table."""
        return f"{PAPERS[self.paper]}, Table {self.name}"

    @property
    def trained(self) -> list[PrintedNumber]:
        """The numbers that the paper trained itself, in its order."""
        return [number for number in self.numbers if not number.is_quoted]

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Each pair (row, data set) of the trained numbers once, in the paper's order."""
        return list(dict.fromkeys((number.row, number.dataset) for number in self.trained))

    @property
    def trainings(self) -> list[Training]:
        """The trainings of all rows, each once."""
        return list(dict.fromkeys(cell.training for row in self.rows for cell in self.find_cells(*row)))

    def find_cells(self, row: str, dataset: str) -> tuple[Cell, ...]:
        """Find what stands for a row: its only training, or those of the rows whose mean or spread it prints."""
        value = read_entries(self.paper)[self.name][row]
        if isinstance(value, Mapping) and "run" not in value:  # one entry for each data set
            value = value[dataset]
        if isinstance(value, list):  # the rows that this one sums up
            return tuple(cell for summed_row in value for cell in self.find_cells(summed_row, dataset))
        settings = {"run": value} if isinstance(value, str) else value
        training = Training.parse(f"{self.paper}/{settings['run']}")
        return (Cell(dataset, row, training, part=settings.get("part", "")),)

    def make_study(self) -> Study:
        """Make the study that reproduces the table."""
        cells = {cell.key: cell for row in self.rows for cell in self.find_cells(*row)}
        return Study(
            name=str(self),
            cells=tuple(cells.values()),
            content={"table": self},
            is_table=True,
            metrics=("",),
            outputs=Path("outputs/tables"),
        )


@cache
def read_tables() -> tuple[Table, ...]:
    """Read the tables in the papers' order; each has numbers that the paper trained itself."""
    groups = groupby(read_numbers(), key=lambda number: (number.paper, number.table))
    return tuple(Table(paper, name, tuple(numbers)) for (paper, name), numbers in groups)


@cache
def read_numbers() -> tuple[PrintedNumber, ...]:
    """Read every number of every table."""
    numbers = []
    with (REFERENCE / "paper_tables.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            dataset, printed, origin = (line.pop(column) for column in ("dataset", "value", "own"))
            dataset = DATASETS.get(dataset, dataset)
            numbers.append(PrintedNumber(dataset=dataset, printed=printed, origin=origin, **line))
    return tuple(numbers)


@cache
def read_entries(paper: str) -> dict[str, dict[str, Any]]:
    """Read reference/PAPER.yaml -> {table: {row: entry}}; the head of rll.yaml describes an entry."""
    content = parse_yaml((REFERENCE / f"{paper}.yaml").read_text(encoding="utf-8"), with_aliases=True) or {}
    return {str(table): entries for table, entries in content.items()}
