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

from dml.ops.errors import InputError
from dml.ops.filesystem.plain_text import parse_yaml

REFERENCE = Path(__file__).parents[1] / "reference"
"""The folder of the papers' numbers, and of the experiments that stand for them."""

PAPERS = {"rll": "RLL", "nra": "NRA", "lns": "LNS", "happier": "HAPPIER", "rsk": "RS@k", "hyp": "Hyp-ViT"}
"""The papers' names as pages print them."""

DATASETS = {"cub": "cub200"}
"""The data sets that the papers' numbers and conf/dataset name differently."""

NUMBERS = ("paper_tables.csv", "published_recalls.csv")
"""The files of the papers' numbers. Those of the second have sources, and its tables are lanes."""

TAXA = ("species", "genus", "family", "order", "class", "phylum", "kingdom")
LEVELS_BY_NAME = {name: level for level, name in enumerate(TAXA)} | {"fine": 0, "coarse": 1}


@dataclass(frozen=True)
class Cell:
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
        """The statistic over other rows that the cell prints, "mean" or "sd"; "" for a cell of one training."""
        name, _, statistic = self.metric.partition("/")
        return "" if name == "ap" else statistic

    @property
    def metric_name(self) -> str:
        """The metric's name in metrics.json, without the prefix of the row's `Source`."""
        from dml.evaluation.names import full_metric_name

        name, _, level = self.metric.partition("/")
        if self.dataset.startswith("dyml"):  # its numbers are means over the benchmarks of the levels
            return f"mean/{'ap' if name == 'map' else name}"
        if name == "ap":
            return f"level{LEVELS_BY_NAME[level]}/ap"
        return full_metric_name(name)


@dataclass(frozen=True)
class Training:
    """An experiment of `conf/experiment`, and the overrides that a row adds to it."""

    experiment: str
    overrides: tuple[str, ...] = ()

    @classmethod
    def parse(cls, arguments: str) -> "Training":
        """Read what follows ``python train.py experiment=``, such as "rll/IX/t_n loss.margin=1"."""
        experiment, *overrides = shlex.split(arguments)
        return cls(experiment, tuple(overrides))

    def extended(self, overrides: Iterable[str]) -> "Training":
        """Return the training with further overrides."""
        return replace(self, overrides=(*self.overrides, *overrides))


@dataclass(frozen=True)
class Source:
    """Where a row's numbers on one data set come from.

    Args:
        trainings: the row's only training, or the trainings whose mean and spread the row prints.
        prefix: prefix of the metrics' names in metrics.json, such as "heads/H", "heads/L+M" or "fixed"; "" for the
            whole embedding.
        differs: sentences that say where the row differs from the paper's protocol, besides what its experiment says.
    """

    trainings: tuple[Training, ...]
    prefix: str = ""
    differs: tuple[str, ...] = ()

    def metric_name(self, cell: Cell) -> str:
        """Return the name of a cell's metric in metrics.json."""
        return add_prefix(self.prefix, cell.metric_name)


def add_prefix(prefix: str, metric: str) -> str:
    """Return the name in metrics.json of a metric of some heads: "heads/H", "nmi" -> "heads/H/nmi"; "" adds nothing."""
    return f"{prefix}/{metric}" if prefix else metric


@dataclass(frozen=True)
class Table:
    """A paper's table: those of its cells that the paper trained itself.

    A lane is a table whose numbers are of one network, one pretraining and one size of the embedding. It was put
    together here, and each of its numbers has a source.
    """

    paper: str
    name: str
    cells: tuple[Cell, ...]

    def __str__(self) -> str:
        return f"{self.paper}-{self.name}"

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Each pair (row, data set) once, in the paper's order."""
        return list(dict.fromkeys((cell.row, cell.dataset) for cell in self.cells))

    @property
    def is_lane(self) -> bool:
        """Whether the table's numbers have sources of their own."""
        return any(cell.source for cell in self.cells)

    @property
    def trainings(self) -> list[Training]:
        """The trainings of all rows, each once."""
        sources = (self.find_source(row, dataset) for row, dataset in self.rows)
        return list(dict.fromkeys(training for source in sources for training in source.trainings))

    def find_source(self, row: str, dataset: str) -> Source:
        """Find the trainings that stand for a row.

        Raises:
            InputError: if reference/PAPER.yaml has no entry for the row.
        """
        entry = read_entries(self.paper).get(self.name, {}).get(row)
        if isinstance(entry, Mapping) and "run" not in entry:  # one entry for each data set
            entry = entry.get(dataset)
        if entry is None:
            raise InputError(f"table {self}: row {row} on {dataset} has no experiment in {_entries_path(self.paper)}")
        if isinstance(entry, list):  # the rows that this one sums up
            sources = [self.find_source(summed_row, dataset) for summed_row in entry]
            trainings = tuple(training for source in sources for training in source.trainings)
            differs = tuple(sentence for source in sources for sentence in source.differs)
            return Source(trainings, sources[0].prefix, differs)
        return self._read_source(entry)

    def _read_source(self, entry: str | Mapping[str, str]) -> Source:
        settings = {"run": entry} if isinstance(entry, str) else entry
        differs = (settings["differs"],) if "differs" in settings else ()
        return Source((Training.parse(f"{self.paper}/{settings['run']}"),), settings.get("part", ""), differs)


def find_tables(name: str | None = None) -> list[Table]:
    """Find the tables that a name stands for: "rll-IX" for one, "rll" for those of a paper, None for all.

    Raises:
        InputError: if no table has the name.
    """
    tables = [table for table in read_tables() if name in (None, table.paper, str(table))]
    if not tables:
        nearest = get_close_matches(str(name), [str(table) for table in read_tables()], n=4, cutoff=0.0)
        raise InputError(f"{name}: no table of this name; nearest: {', '.join(nearest)}")
    return tables


@cache
def read_tables() -> tuple[Table, ...]:
    """Read the tables with cells that the paper trained itself, in the papers' order."""
    trained_cells = (cell for cell in read_cells() if not cell.is_quoted)
    groups = groupby(trained_cells, key=lambda cell: (cell.paper, cell.table))
    return tuple(Table(paper, name, tuple(cells)) for (paper, name), cells in groups)


@cache
def read_cells() -> tuple[Cell, ...]:
    """Read every number of every table, quoted ones included."""
    return tuple(cell for name in NUMBERS for cell in _read_file(REFERENCE / name))


def _read_file(path: Path) -> list[Cell]:
    with path.open(newline="", encoding="utf-8") as file:
        return [_read_cell(line) for line in csv.DictReader(file)]


def _read_cell(line: dict[str, str]) -> Cell:
    dataset, printed, origin = (line.pop(column) for column in ("dataset", "value", "own"))
    return Cell(dataset=DATASETS.get(dataset, dataset), printed=printed, origin=origin, **line)


@cache
def read_entries(paper: str) -> dict[str, dict[str, Any]]:
    """Read reference/PAPER.yaml -> {table: {row: entry}}; the head of rll.yaml describes an entry."""
    content = parse_yaml(_entries_path(paper).read_text(encoding="utf-8")) or {}
    return {str(table): entries for table, entries in content.items()}


def _entries_path(paper: str) -> Path:
    return REFERENCE / f"{paper}.yaml"
