"""Queries with their nearest neighbours, as a report shows them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dml.evaluation.per_query import QueryTable
from dml.evaluation.report.tiles import Tile, Tiles
from dml.evaluation.sheets.pictures import COARSER, OTHER, SAME

NEIGHBORS_SHOWN = 8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CaptionedPicture:
    """A picture with the name of its class below it.

    Args:
        tile: position of the picture on the page's sheet of pictures.
        name: name of the picture's finest class.
        relation: relation of a neighbour to its query: `SAME`, `COARSER` or `OTHER`; "" for a query.
        remark: words on a neighbour: which level it shares with the query, and its similarity (cosine, or of the ball).
    """

    tile: Tile
    name: str
    relation: str = ""
    remark: str = ""


@dataclass(frozen=True)
class QueryResult:
    """A query and its nearest neighbours, in one run or in several.

    Args:
        query: picture of the query.
        superclasses: names of the query's coarser classes, the coarsest first.
        remarks: lines of text below the name of the query's class.
        neighbors: one list of pictures for each run: the nearest neighbours, nearest first.
    """

    query: CaptionedPicture
    superclasses: str
    remarks: Sequence[str]
    neighbors: Sequence[Sequence[CaptionedPicture]]


@dataclass(frozen=True)
class QueryScore:
    """A score by which queries are ordered from worst to best.

    Args:
        name: name of the score.
        values: (Q,) fractions, NaN for queries without positives.
    """

    name: str
    values: Floats

    def describe(self, row: int) -> str:
        """Return the score of one query in words, such as "AP 50.0 %"."""
        return f"{self.name} {100 * self.values[row]:.1f} %"


def score_queries(table: QueryTable) -> QueryScore:
    """Score queries by AP at the finest level, or else by 1 / rank of the nearest stored neighbour of their class."""
    if "level0/ap" in table.metrics:
        return QueryScore("AP", table.metrics["level0/ap"])
    is_same = compare_classes(table)
    reciprocal_ranks = np.where(is_same.any(axis=1), 1 / (1 + is_same.argmax(axis=1)), 0.0)
    recalls = table.metrics.get("level0/recall@1", reciprocal_ranks)  # NaN tells a query without positives
    return QueryScore("reciprocal rank", np.where(np.isnan(recalls), np.nan, reciprocal_ranks))


def compare_classes(table: QueryTable) -> npt.NDArray[np.bool_]:
    """Return whether each stored neighbour has the finest class of its query. -> (Q, k)"""
    is_same: npt.NDArray[np.bool_] = table.find_shared_levels(levels=slice(1)) == 0
    return is_same


def choose_lowest(values: Floats, classes: npt.NDArray[np.int64], count: int, seed: int = 0) -> list[int]:
    """Choose the rows of the lowest values, at most one of each class. (Q,), (Q,) -> up to ``count`` rows

    Args:
        values: (Q,) values; rows with NaN are never chosen.
        classes: (Q,) class of each row.
        count: largest number of rows.
        seed: seed of the order of equal values, which is random.
    """
    order = np.lexsort((np.random.default_rng(seed).permutation(len(values)), values))
    row_by_class: dict[int, int] = {}
    for row in order[: np.count_nonzero(~np.isnan(values))].tolist():
        row_by_class.setdefault(int(classes[row]), row)
        if len(row_by_class) == count:
            break
    return list(row_by_class.values())


def make_sheets(table: QueryTable, tiles: Tiles, count: int = 6) -> dict[str, list[QueryResult]]:
    """Return {"Worst", "Median", "Best": up to ``count`` queries}; an empty dictionary if no query has a score."""
    score = score_queries(table)
    if np.isnan(score.values).all():
        return {}
    distances_to_median = np.abs(score.values - np.nanmedian(score.values))
    orders = {"Worst": score.values, "Median": distances_to_median, "Best": -score.values}
    return {
        title: [
            show_query(table, row, tiles, remarks=(score.describe(row), describe_first_match(table, row)))
            for row in choose_lowest(values, table.labels[:, 0], count)
        ]
        for title, values in orders.items()
    }


def describe_first_match(table: QueryTable, row: int) -> str:
    """Return the rank of a query's nearest stored neighbour of its class, in words."""
    is_same = compare_classes(table)[row]
    if is_same.any():
        return f"first match at rank {is_same.argmax() + 1}"
    return f"no match in the first {len(is_same)}"


def show_query(
    table: QueryTable, row: int, tiles: Tiles, remarks: Sequence[str], other_runs: Iterable[QueryTable] = ()
) -> QueryResult:
    """Return a query with its neighbours.

    Args:
        table: queries of a run.
        row: row of the query.
        tiles: sheet of pictures, to which the shown pictures are added.
        remarks: lines of text below the name of the query's class.
        other_runs: queries of other runs in the same order, whose neighbours are shown below.
    """
    labels = table.labels[row].tolist()
    superclasses = [table.class_name(label, level) for level, label in enumerate(labels) if level]
    return QueryResult(
        query=CaptionedPicture(tiles.place(table.paths[row]), table.class_name(labels[0])),
        superclasses=" › ".join(reversed(superclasses)),
        remarks=remarks,
        neighbors=[_show_neighbors(run, row, tiles) for run in (table, *other_runs)],
    )


def _show_neighbors(table: QueryTable, row: int, tiles: Tiles) -> list[CaptionedPicture]:
    relations = [SAME, *[COARSER] * (len(table.levels) - 1), OTHER]
    words = [*(f"same {level}" for level in table.levels), f"other {table.levels[-1]}"]
    neighbors = zip(
        table.neighbors[row].tolist(),
        table.neighbor_labels[row, :, 0].tolist(),
        table.find_shared_levels()[row].tolist(),
        table.similarities[row].tolist(),
        strict=True,
    )
    return [
        CaptionedPicture(
            tiles.place(path), table.class_name(label), relations[level], f"{words[level]}, similarity {similarity:.2f}"
        )
        for path, label, level, similarity in list(neighbors)[:NEIGHBORS_SHOWN]
    ]
