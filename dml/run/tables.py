"""The papers' tables: what they print, and which training stands for each of their rows."""

import csv
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from dml.ops.errors import InputError

REFERENCE = Path(__file__).parent / "reference"
PAPERS = {"rll": "RLL", "nra": "NRA", "lns": "LNS", "happier": "HAPPIER"}
"""The papers' names, for people."""

DATASETS = {"cub": "cub200"}  # names that conf/dataset spells otherwise
LEVELS = ("species", "genus", "family", "order", "class", "phylum", "kingdom")
LEVEL = {name: level for level, name in enumerate(LEVELS)} | {"fine": 0, "coarse": 1}
OVER_LEVELS = ("h_ap", "asi", "ndcg", "sum_wap")  # metrics of all levels together


@dataclass(frozen=True)
class Cell:
    """One number of a table, as its paper prints it: a line of reference/paper_tables.csv.

    Args:
        paper: rll, nra, lns or happier.
        table: as numbered there.
        row: a stable key.
        method: as printed.
        own: "true" for the paper's method, an ablation or a run of it again, "retrained" for a baseline that the paper
            ran itself, "false" for a number that it quotes.
        dataset: as `conf/dataset` names it.
        backbone, dim, heads, settings: what the paper states, empty where it doesn't.
        metric: recall@k, nmi, f1, h_ap, asi, ndcg, sum_wap, ap/LEVEL, map, recall@1/mean, recall@1/sd.
        printed: the number in percent; empty where the paper prints a dash.
        note: what is odd about it.
    """

    paper: str
    table: str
    row: str
    method: str
    own: str
    dataset: str
    backbone: str
    dim: str
    heads: str
    settings: str
    metric: str
    printed: str
    note: str

    @property
    def value(self) -> float | None:
        """The number, in percent."""
        return float(self.printed) if self.printed else None

    @property
    def statistic(self) -> str:
        """Of a cell that sums up other rows "mean" or "sd", else ""."""
        name, _, statistic = self.metric.partition("/")
        return "" if name == "ap" else statistic

    @property
    def key(self) -> str:
        """The metric's name in metrics.json."""
        name, _, of = self.metric.partition("/")
        if self.dataset.startswith("dyml"):  # the mean over the levels' own benchmarks
            return f"mean/{'ap' if name == 'map' else name}"
        if name == "ap":
            return f"level{LEVEL[of]}/ap"
        return name if name in OVER_LEVELS else f"level0/{name}"


@dataclass(frozen=True)
class Training:
    """An experiment of `conf/experiment`, and what a row sets in it."""

    experiment: str
    overrides: tuple[str, ...] = ()

    @classmethod
    def parse(cls, run: str) -> "Training":
        """Reads what would follow ``python train.py experiment=``."""
        experiment, *overrides = shlex.split(run)
        return cls(experiment, tuple(overrides))

    def extended(self, overrides: Iterable[str]) -> "Training":
        """The same with more overrides."""
        return replace(self, overrides=(*self.overrides, *overrides))


@dataclass(frozen=True)
class Source:
    """Where a row's numbers on one data set come from.

    Args:
        trainings: one, or those whose mean and spread the row is.
            part: of their metrics.json, such as "heads/H", "heads/L+M" or "fixed"; "" is the whole embedding.
            differs: where the row differs from the paper's protocol, besides what its experiment says; a sentence each.
    """

    trainings: tuple[Training, ...]
    part: str = ""
    differs: tuple[str, ...] = ()

    def key(self, cell: Cell) -> str:
        """The name of a cell's metric in metrics.json."""
        return of_part(self.part, cell.key)


def of_part(part: str, key: str) -> str:
    """The name in metrics.json of a part's metric; "" is the whole embedding."""
    return f"{part}/{key}" if part else key


@dataclass(frozen=True)
class Table:
    """A paper's table: those of its cells that the paper trained itself."""

    paper: str
    name: str
    cells: tuple[Cell, ...]

    def __str__(self) -> str:
        return f"{self.paper}-{self.name}"

    def rows(self) -> list[tuple[str, str]]:
        """(row, data set), each once, in the paper's order."""
        return list(dict.fromkeys((cell.row, cell.dataset) for cell in self.cells))

    def source(self, row: str, dataset: str) -> Source:
        """What trains a row.

        Raises:
            InputError: if reference/PAPER.yaml has no entry for it.
        """
        entry = index(self.paper).get(self.name, {}).get(row)
        if isinstance(entry, Mapping) and "run" not in entry:
            entry = entry.get(dataset)
        if entry is None:
            raise InputError(f"table {self}: row {row} on {dataset} has no experiment in {_path(self.paper)}")
        if isinstance(entry, list):
            summed = [self.source(other, dataset) for other in entry]
            trainings = tuple(one for other in summed for one in other.trainings)
            return Source(trainings, summed[0].part, tuple(line for other in summed for line in other.differs))
        return self._single(entry)

    def _single(self, entry: str | Mapping[str, str]) -> Source:
        settings = {"run": entry} if isinstance(entry, str) else entry
        differs = (settings["differs"],) if "differs" in settings else ()
        return Source((Training.parse(f"{self.paper}/{settings['run']}"),), settings.get("part", ""), differs)

    def trainings(self) -> list[Training]:
        """Those of all rows, each once."""
        found = [one for row, dataset in self.rows() for one in self.source(row, dataset).trainings]
        return list(dict.fromkeys(found))


@cache
def cells() -> tuple[Cell, ...]:
    """Every number of every table, quoted ones included."""
    with (REFERENCE / "paper_tables.csv").open(newline="", encoding="utf-8") as file:
        return tuple(_cell(line) for line in csv.DictReader(file))


def _cell(line: dict[str, str]) -> Cell:
    dataset, printed = line.pop("dataset"), line.pop("value")
    return Cell(dataset=DATASETS.get(dataset, dataset), printed=printed, **line)


@cache
def tables() -> tuple[Table, ...]:
    """The tables with cells that the paper trained itself, in the papers' order."""
    own = (cell for cell in cells() if cell.own != "false")
    groups = groupby(own, key=lambda cell: (cell.paper, cell.table))
    return tuple(Table(paper, name, tuple(group)) for (paper, name), group in groups)


def chosen(name: str | None = None) -> list[Table]:
    """The tables that a name stands for: "rll-IX" for one, "rll" for its paper's, None for all.

    Raises:
        InputError: if there is none.
    """
    found = [table for table in tables() if name in (None, table.paper, str(table))]
    if not found:
        nearest = get_close_matches(str(name), [str(table) for table in tables()], n=4, cutoff=0.0)
        raise InputError(f"{name}: no table of this name; nearest: {', '.join(nearest)}")
    return found


@cache
def index(paper: str) -> dict[str, dict[str, Any]]:
    """{table: {row: entry}}, see the head of reference/rll.yaml."""
    return {
        str(table): rows for table, rows in (yaml.safe_load(_path(paper).read_text(encoding="utf-8")) or {}).items()
    }


def _path(paper: str) -> Path:
    return REFERENCE / f"{paper}.yaml"
