"""Two runs on the same queries."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import yaml

from dml.evaluation.comparison import Difference, mean_difference
from dml.evaluation.metric_names import short
from dml.evaluation.per_query import QueryTable, Strings
from dml.evaluation.report.metrics import ALL_LEVELS, MEAN_OF_LEVELS, fractions, group_of, parts, percent
from dml.evaluation.report.run import Run
from dml.evaluation.report.sheets import Found, Score, choose, first_match, found, same_class, score_of
from dml.evaluation.report.tiles import Tiles
from dml.ops.errors import InputError
from dml.ops.nested import flat

RESAMPLES = 2000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Compared:
    """A metric of both runs, and of B less A.

    Args:
        name: of the metric.
        values: of A and of B, in percent.
        difference: B - A in points.
        interval: its 95 % interval in words; empty where the metric is none of single queries.
        sure: whether the interval leaves out zero.
        bar: where the interval starts, where it ends and where the difference is, in percent of a width that has
            zero in its middle; None without an interval.
    """

    name: str
    values: tuple[str, str]
    difference: str
    interval: str = ""
    sure: bool = False
    bar: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Outcomes:
    """How many queries have a nearest neighbour of their class in both runs, in one alone, in none."""

    both: int
    only_a: int
    only_b: int
    neither: int


def aligned(a: Run, b: Run) -> Run:
    """B with its rows in A's order, and its images where A has them.

    Images are the same if their paths below the folder that holds all queries are: two copies of a data set may
    lie in different places.

    Raises:
        InputError: if the runs were tested on different queries.
    """
    ours, theirs = a.queries, b.queries
    both = f"{a.name} and {b.name}"
    if len(ours) != len(theirs):
        raise InputError(f"{both}: different queries, {len(ours):,} and {len(theirs):,}")
    (root, keys), (other_root, other_keys) = _below(ours.paths), _below(theirs.paths)
    rows = {key: row for row, key in enumerate(other_keys)}
    order = np.array([rows.get(key, -1) for key in keys])
    if (order < 0).any():
        raise InputError(f"{both}: different queries, {ours.paths[int(np.argmin(order))]} is one of the first alone")
    if ours.levels != theirs.levels or not np.array_equal(ours.labels, theirs.labels[order]):
        raise InputError(f"{both}: different labels of the same queries")
    moved = {
        path: root + path.removeprefix(other_root) if path.startswith(other_root) else path
        for path in theirs.neighbors.ravel().tolist()
    }
    table = replace(
        theirs,
        paths=ours.paths,
        labels=ours.labels,
        metrics={name: values[order] for name, values in theirs.metrics.items()},
        neighbors=np.vectorize(moved.__getitem__, otypes=[object])(theirs.neighbors[order]),
        neighbor_labels=theirs.neighbor_labels[order],
        similarities=theirs.similarities[order],
        positions=None,
    )
    return replace(b, queries=table)


def _below(paths: Strings) -> tuple[str, list[tuple[str, int]]]:
    """The folder that holds all, and of each its path below it and how many came before with the same path."""
    listed = paths.tolist()
    root = os.path.join(os.path.commonpath([os.path.dirname(path) for path in listed]), "")
    seen: Counter[str] = Counter()
    keys = []
    for path in listed:
        keys.append((path.removeprefix(root), seen[path]))
        seen[path] += 1
    return root, keys


def differences(a: Run, b: Run) -> dict[str, list[Compared]]:
    """{level, "mean of the levels" or "all levels": its metrics}, those that both runs have, with intervals."""
    ours, theirs = a.queries.metrics, b.queries.metrics
    intervals = {
        name: mean_difference(values, theirs[name], resamples=RESAMPLES)
        for name, values in ours.items()
        if name in theirs and not np.isnan(values).all()
    }
    return _grouped(fractions(a.metrics), fractions(b.metrics), a.queries.levels, intervals)


def part_differences(a: Run, b: Run) -> dict[str, dict[str, list[Compared]]]:
    """For what was measured beside all heads together (before training, each head alone): as `differences`."""
    ours, theirs = parts(a), parts(b)
    names = [name for name in ours if name in theirs and name.startswith(("before", "head "))]
    return {name: _grouped(ours[name], theirs[name], a.queries.levels, {}) for name in names}


def _grouped(
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    levels: Sequence[str],
    intervals: Mapping[str, Difference],
) -> dict[str, list[Compared]]:
    shared = [name for name in ours if name in theirs]
    bounds = [bound for name in shared if name in intervals for bound in intervals[name][2:]]
    widest = max(map(abs, bounds), default=0.0) or 1.0
    groups: dict[str, list[Compared]] = {group: [] for group in (*levels, MEAN_OF_LEVELS, ALL_LEVELS)}
    for name in shared:
        compared = _compared(name, ours[name], theirs[name], intervals.get(name), widest)
        groups[group_of(name, levels)].append(compared)
    return {group: rows for group, rows in groups.items() if rows}


def _compared(name: str, ours: float, theirs: float, interval: Difference | None, widest: float) -> Compared:
    values, difference = (percent(ours), percent(theirs)), _points(theirs - ours)
    if interval is None:
        return Compared(short(name), values, difference)
    _, mean, low, high = interval
    return Compared(
        name=short(name),
        values=values,
        difference=difference,
        interval=f"{_points(low)} to {_points(high)}",
        sure=low > 0 or high < 0,
        bar=(_share(low, widest), _share(high, widest), _share(mean, widest)),
    )


def _share(difference: float, widest: float) -> float:
    """Percent of a width that has zero in its middle and ``widest`` at its end."""
    return round(50 + 50 * difference / widest, 2)


def _points(difference: float) -> str:
    """0.0123 -> +1.2, with the typographic minus."""
    text = f"{100 * difference:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def hits(table: QueryTable) -> npt.NDArray[np.bool_]:
    """(Q,): whether the nearest neighbour is of the query's class."""
    return same_class(table)[:, 0]


def outcomes(a: Run, b: Run) -> Outcomes:
    """Counts the queries that have a positive."""
    scored = ~np.isnan(score_of(a.queries).values)
    ours, theirs = hits(a.queries)[scored], hits(b.queries)[scored]
    return Outcomes(*(int(which.sum()) for which in (ours & theirs, ours & ~theirs, theirs & ~ours, ~ours & ~theirs)))


def changed(a: Run, b: Run, tiles: Tiles, count: int = 8) -> dict[str, list[Found]]:
    """Queries that A gets right and B wrong, and the reverse: those whose score changed most first, one a class."""
    ours, theirs = score_of(a.queries), score_of(b.queries)
    gain = theirs.values - ours.values
    right = hits(a.queries), hits(b.queries)
    lists = {
        "Right in A, wrong in B": np.where(right[0] & ~right[1], gain, np.nan),
        "Wrong in A, right in B": np.where(right[1] & ~right[0], -gain, np.nan),
    }
    return {
        title: [
            found(a.queries, row, tiles, _remarks(row, (a, b), (ours, theirs)), [b.queries])
            for row in choose(values, a.queries.labels[:, 0], count)
        ]
        for title, values in lists.items()
    }


def _remarks(row: int, runs: Iterable[Run], scores: Iterable[Score]) -> list[str]:
    return [
        f"{letter}: {score.text(row)}, {first_match(run.queries, row)}"
        for letter, run, score in zip("AB", runs, scores, strict=True)
    ]


def settings_that_differ(a: Run, b: Run) -> list[tuple[str, str, str]]:
    """(dotted key, A's value, B's value); a dash where a run has no such key."""
    ours, theirs = ({key: str(value) for key, value in flat(yaml.safe_load(run.config)).items()} for run in (a, b))
    return [
        (key, ours.get(key, "–"), theirs.get(key, "–"))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    ]
