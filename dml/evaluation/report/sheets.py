"""Queries and what they found, as the page shows them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dml.evaluation.per_query import QueryTable
from dml.evaluation.report.tiles import Tile, Tiles

SHOWN = 8  # neighbours of a query
SAME, COARSER, OTHER = "same", "coarser", "other"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Picture:
    """An image with the name of its class; of a neighbour also how it is related to the query."""

    tile: Tile
    name: str
    relation: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Found:
    """A query and its nearest neighbours: one list, or one for each of several runs."""

    query: Picture
    above: str
    remarks: Sequence[str]
    neighbors: Sequence[Sequence[Picture]]


@dataclass(frozen=True)
class Score:
    """By which number queries are told good from bad.

    Args:
        name: its name.
        values: (Q,), NaN for queries without positives.
    """

    name: str
    values: Floats

    def text(self, row: int) -> str:
        """A query's score in words."""
        return f"{self.name} {100 * self.values[row]:.1f} %"


def score_of(table: QueryTable) -> Score:
    """AP at the finest level; where it wasn't measured, 1 / rank of the first of the class among the neighbours."""
    if "level0/ap" in table.metrics:
        return Score("AP", table.metrics["level0/ap"])
    same = same_class(table)
    first = np.where(same.any(axis=1), 1 / (1 + same.argmax(axis=1)), 0.0)
    measured = table.metrics.get("level0/recall@1", first)
    return Score("reciprocal rank", np.where(np.isnan(measured), np.nan, first))


def same_class(table: QueryTable) -> npt.NDArray[np.bool_]:
    """(Q, k): whether the neighbour is of the query's class."""
    labels = table.labels[:, :1]
    found: npt.NDArray[np.bool_] = (table.neighbor_labels[:, :, 0] == labels) & (labels >= 0)
    return found


def choose(values: Floats, classes: npt.NDArray[np.int64], count: int, seed: int = 0) -> list[int]:
    """(Q,), (Q,) -> the `count` rows of the lowest values, at most one a class; NaN is never chosen.

    Equal values come in a random order by `seed`, not in that of the data set.
    """
    order = np.lexsort((np.random.default_rng(seed).permutation(len(values)), values))
    chosen: dict[int, int] = {}
    for row in order[: np.count_nonzero(~np.isnan(values))].tolist():
        chosen.setdefault(int(classes[row]), row)
        if len(chosen) == count:
            break
    return list(chosen.values())


def sheets(table: QueryTable, tiles: Tiles, count: int = 6) -> dict[str, list[Found]]:
    """The worst, the median and the best queries."""
    score = score_of(table)
    if np.isnan(score.values).all():
        return {}
    middle = np.abs(score.values - np.nanmedian(score.values))
    ranked = {"Worst": score.values, "Median": middle, "Best": -score.values}
    return {
        title: [
            found(table, row, tiles, remarks=(score.text(row), first_match(table, row)))
            for row in choose(values, table.labels[:, 0], count)
        ]
        for title, values in ranked.items()
    }


def first_match(table: QueryTable, row: int) -> str:
    """Where the first neighbour of the query's class stands."""
    same = same_class(table)[row]
    if same.any():
        return f"first match at rank {same.argmax() + 1}"
    return f"no match in the first {len(same)}"


def found(
    table: QueryTable, row: int, tiles: Tiles, remarks: Sequence[str], others: Iterable[QueryTable] = ()
) -> Found:
    """A query's row, with the neighbours of the same row of other tables below."""
    coarser = [table.class_name(label, level) for level, label in enumerate(table.labels[row].tolist()) if level]
    name = table.class_name(int(table.labels[row, 0]))
    return Found(
        query=Picture(tiles.at(table.paths[row]), name),
        above=" › ".join(reversed(coarser)),
        remarks=remarks,
        neighbors=[_neighbors(each, row, tiles) for each in (table, *others)],
    )


def _neighbors(table: QueryTable, row: int, tiles: Tiles) -> list[Picture]:
    shown = zip(
        table.neighbors[row].tolist(), table.neighbor_labels[row], table.similarities[row].tolist(), strict=True
    )
    pictures = []
    for path, labels, similarity in list(shown)[:SHOWN]:
        relation, words = _relation(table, table.labels[row], labels)
        remark = f"{words}, cosine {similarity:.2f}"
        pictures.append(Picture(tiles.at(path), table.class_name(int(labels[0])), relation, remark))
    return pictures


def _relation(table: QueryTable, query: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> tuple[str, str]:
    shared = np.flatnonzero((query == other) & (query >= 0))
    if not len(shared):
        return OTHER, f"other {table.levels[-1]}"
    return (COARSER if shared[0] else SAME), f"same {table.levels[shared[0]]}"
