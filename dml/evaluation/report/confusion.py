"""Which classes the nearest neighbour mixes up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dml.evaluation.per_query import QueryTable
from dml.evaluation.report.sheets import Picture, score_of
from dml.evaluation.report.tiles import Tiles


@dataclass(frozen=True)
class Confusion:
    """Two classes, and the queries of either whose nearest neighbour is of the other.

    Args:
        names: of the two classes.
        mixed_up: how many queries.
        queries: of both classes, those with positives.
        examples: some of them, each with its nearest neighbour.
    """

    names: tuple[str, str]
    mixed_up: int
    queries: int
    examples: Sequence[tuple[Picture, Picture]]

    @property
    def share(self) -> float:
        """Of the queries of the two classes."""
        return self.mixed_up / self.queries


def confusions(table: QueryTable, tiles: Tiles, count: int = 12, examples: int = 3) -> list[Confusion]:
    """The pairs of finest classes most often mixed up, most first; at equal number the larger share first."""
    classes, nearest = table.labels[:, 0], table.neighbor_labels[:, 0, 0]
    scored = ~np.isnan(score_of(table).values)
    wrong = np.flatnonzero(scored & (classes != nearest) & (nearest >= 0))
    if not len(wrong):
        return []
    couples = np.sort(np.stack([classes[wrong], nearest[wrong]], axis=1), axis=1)
    pairs, pair_of, mixed_up = np.unique(couples, axis=0, return_inverse=True, return_counts=True)
    present, sizes = np.unique(classes[scored], return_counts=True)
    size = dict(zip(present.tolist(), sizes.tolist(), strict=True))
    queries = np.array([sum(size.get(label, 0) for label in pair) for pair in pairs.tolist()])
    order = np.lexsort((-mixed_up / queries, -mixed_up))[:count]
    return [
        Confusion(
            names=(table.class_name(int(pairs[pair, 0])), table.class_name(int(pairs[pair, 1]))),
            mixed_up=int(mixed_up[pair]),
            queries=int(queries[pair]),
            examples=_examples(table, tiles, wrong[pair_of.reshape(-1) == pair][:examples]),
        )
        for pair in order
    ]


def _examples(table: QueryTable, tiles: Tiles, rows: npt.NDArray[np.int64]) -> list[tuple[Picture, Picture]]:
    return [
        (
            Picture(tiles.at(table.paths[row]), table.class_name(int(table.labels[row, 0]))),
            Picture(tiles.at(table.neighbors[row, 0]), table.class_name(int(table.neighbor_labels[row, 0, 0]))),
        )
        for row in rows
    ]
