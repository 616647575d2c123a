"""The results of a study as one small Parquet file: a row for each run, and a row for each run and test class."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml.report.provenance import merge_facts
from dml.report.statistics import ClassSums
from dml.runtime.errors import InputError
from dml.runtime.files import holding, replacing
from dml.studies.study import Cell, Key, Study

SEARCH, TEST = "search", "test"
"""The stages of a study: tried on the validation classes, and tested."""

CLASS, QUERIES = "class", "queries"
"""The columns that only the rows of test classes have."""


@dataclass(frozen=True)
class Result:
    """The result of a run of a cell."""

    dataset: str
    condition: str
    row: str
    stage: str = TEST
    seed: int = 0
    overrides: str = ""  # that a search chose, or that were tried, as a shell takes them
    configuration: str = ""  # hash of what the run trained; "" in the leaderboard's results
    seconds: float = 0.0
    facts: Mapping[str, str] = field(default_factory=dict)  # on the model and data of the metrics
    metrics: Mapping[str, float] = field(default_factory=dict)  # fractions; of a tried run only its "score"
    counts: Sequence[int] = ()  # number of queries of each test class; empty without sums
    sums: Mapping[str, Sequence[float]] = field(default_factory=dict)  # {metric: sums over each class's queries}

    @property
    def key(self) -> Key:
        """The key of the run's cell."""
        return self.dataset, self.condition, self.row


KEYS = [column.name for column in fields(Result)][:8]
"""The columns that every row of the file has, beside the facts as JSON."""


@dataclass(frozen=True)
class RowResult:
    """The tested runs of a cell, in the order of their seeds."""

    cell: Cell
    runs: tuple[Result, ...]

    @property
    def seeds(self) -> set[int]:
        """The seeds of the runs."""
        return {run.seed for run in self.runs}

    @property
    def facts(self) -> dict[str, str]:
        """What the metrics are of; where runs differ, all values."""
        return merge_facts(run.facts for run in self.runs)

    @property
    def tested(self) -> ClassSums:
        """The metrics of the runs, summed by test class."""
        counts = list(self.runs[0].counts)
        if any(list(run.counts) != counts for run in self.runs):
            raise InputError(f"{' '.join(filter(None, self.cell.key))}: its runs were tested on different classes")
        return ClassSums(
            counts, {metric: [list(run.sums[metric]) for run in self.runs] for metric in self.runs[0].sums}
        )

    def values(self, metric: str) -> list[float]:
        """Return the metric of each run that has it, fractions."""
        if metric in self.runs[0].sums:
            return self.tested.run_means(metric)
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]

    def select_runs(self, seeds: set[int]) -> "RowResult":
        """Return the row with the runs of some seeds."""
        return RowResult(self.cell, tuple(run for run in self.runs if run.seed in seeds))


Rows = Mapping[Key, RowResult]
"""The tested runs of cells by their keys."""


def group_rows(results: Iterable[Result], study: Study) -> Rows:
    """Group the tested runs among some results by the cells of a study, in the order of their seeds."""
    runs: dict[Key, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.seed):
        if result.stage == TEST:
            runs.setdefault(result.key, []).append(result)
    return {cell.key: RowResult(cell, tuple(runs[cell.key])) for cell in study.cells if cell.key in runs}


def read_results(path: Path) -> list[Result]:
    """Read the results that `write_results` wrote; none if there is no file."""
    if not path.exists():
        return []
    try:
        table = pq.read_table(path)
        starts = np.flatnonzero(table[CLASS].is_null().to_numpy()).tolist()
        heads = table.take(starts).to_pylist()
        names = [name for name in table.column_names if name not in (*KEYS, "facts", CLASS, QUERIES)]
        columns = {name: table[name].to_numpy() for name in (*names, QUERIES)}
    except (OSError, KeyError, pa.ArrowException) as error:
        raise InputError(f"{path}: no results of a study ({error}); delete it, or take it from git") from error
    results = []
    for head, start, end in zip(heads, starts, [*starts[1:], len(table)], strict=True):
        rows = slice(start + 1, end)
        sums = {name: columns[name][rows] for name in names}
        results.append(
            Result(
                **{name: head[name] for name in KEYS},
                facts=json.loads(head["facts"]),
                metrics={name: head[name] for name in names if head[name] is not None},
                counts=columns[QUERIES][rows].astype(int).tolist(),
                sums={name: values.tolist() for name, values in sums.items() if not np.isnan(values).all()},
            )
        )
    return results


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write results in the order of their cells and stages; tried runs stay in the order in which they were tried."""
    ordered = sorted(
        results,
        key=lambda result: (result.key, result.stage, 0 if result.stage == SEARCH else result.seed),
    )
    rows = np.repeat(np.arange(len(ordered)), [1 + len(result.counts) for result in ordered])
    table = {name: pa.array([getattr(result, name) for result in ordered]).take(pa.array(rows)) for name in KEYS}
    table["facts"] = pa.array([json.dumps(dict(result.facts)) for result in ordered]).take(pa.array(rows))
    join = chain.from_iterable
    table[CLASS] = pa.array(join([None, *range(len(result.counts))] for result in ordered), pa.int32())
    table[QUERIES] = pa.array(join([None, *result.counts] for result in ordered), pa.int32())
    for name in sorted({name for result in ordered for name in (*result.metrics, *result.sums)}):
        values = ((result.metrics.get(name), *result.sums.get(name, [None] * len(result.counts))) for result in ordered)
        table[name] = pa.array(join(values), pa.float64())
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        pq.write_table(pa.table(table), partial, compression="zstd", compression_level=19)


def merge_results(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """Merge results: the new ones of a cell and a stage take the place of all old ones."""
    new = list(new)
    replaced = {(result.key, result.stage) for result in new}
    return [*(result for result in old if (result.key, result.stage) not in replaced), *new]


def store_results(path: Path, new: Iterable[Result]) -> list[Result]:
    """Merge new results into a file, and return all: another command may have written there meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with holding(path.with_name(f".{path.name}.lock"), wait=True):
        old, new = read_results(path), list(new)
        merged = merge_results(old, new)
        if new:
            write_results(path, merged)
    return merged
