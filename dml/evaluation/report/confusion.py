"""Pairs of classes that the nearest neighbour mixes up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dml.evaluation.per_query import QueryTable
from dml.evaluation.report.sheets import CaptionedPicture, score_queries
from dml.evaluation.report.tiles import Tiles

Example = tuple[CaptionedPicture, CaptionedPicture]
"""A query and its nearest neighbour."""


@dataclass(frozen=True)
class Confusion:
    """Two classes, with the queries of either class whose nearest neighbour is in the other.

    Args:
        names: names of the two classes.
        mixed_up: number of queries whose nearest neighbour is in the other class.
        queries: number of queries of both classes that have a positive.
        examples: some of the queries that are mixed up, each with its nearest neighbour.
    """

    names: tuple[str, str]
    mixed_up: int
    queries: int
    examples: Sequence[Example]

    @property
    def share(self) -> float:
        """The share of the two classes' queries that are mixed up."""
        return self.mixed_up / self.queries


def find_confusions(table: QueryTable, tiles: Tiles, count: int = 12, examples: int = 3) -> list[Confusion]:
    """Find the pairs of finest classes with the most queries that are mixed up; the larger share decides ties.

    Args:
        table: queries of a run.
        tiles: sheet of pictures, to which those of the examples are added.
        count: largest number of pairs.
        examples: largest number of examples of each pair.
    """
    classes, nearest = table.labels[:, 0], table.neighbor_labels[:, 0, 0]
    has_positive = ~np.isnan(score_queries(table).values)
    wrong = np.flatnonzero(has_positive & (classes != nearest) & (nearest >= 0))
    if not len(wrong):
        return []
    pair_of_query = np.sort(np.stack([classes[wrong], nearest[wrong]], axis=1), axis=1)
    pairs, pair_numbers, mixed_up = np.unique(pair_of_query, axis=0, return_inverse=True, return_counts=True)
    class_sizes = dict(zip(*map(np.ndarray.tolist, np.unique(classes[has_positive], return_counts=True)), strict=True))
    queries = np.array([sum(class_sizes.get(label, 0) for label in pair) for pair in pairs.tolist()])
    order = np.lexsort((-mixed_up / queries, -mixed_up))[:count]
    return [
        Confusion(
            names=(table.class_name(int(pairs[pair, 0])), table.class_name(int(pairs[pair, 1]))),
            mixed_up=int(mixed_up[pair]),
            queries=int(queries[pair]),
            examples=_show_examples(table, tiles, wrong[pair_numbers.reshape(-1) == pair][:examples]),
        )
        for pair in order
    ]


def _show_examples(table: QueryTable, tiles: Tiles, rows: npt.NDArray[np.int64]) -> list[Example]:
    return [
        (
            CaptionedPicture(tiles.place(table.paths[row]), table.class_name(int(table.labels[row, 0]))),
            CaptionedPicture(
                tiles.place(table.neighbors[row, 0]), table.class_name(int(table.neighbor_labels[row, 0, 0]))
            ),
        )
        for row in rows
    ]
