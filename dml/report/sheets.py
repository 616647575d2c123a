"""Queries with what they find, and pairs of classes that are mixed up, with their small pictures."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from dml.evaluation.per_query import QueryTable, choose_lowest, describe_first_match, score_queries
from dml.report.pictures import OTHER, PAPER, SAME, ReadPicture
from dml.runtime.errors import InputError

INNER, EDGE = 64, 1
"""Pixels of a picture's side and of the margin around it: browsers blend the edges of neighboring scaled tiles."""
CELL = INNER + 2 * EDGE
COLUMNS = 64
"""Pictures in a row."""
MOST_ROWS = 16_383 // CELL
"""Rows of a sheet: 248, of 15,872 pictures. WebP images have at most 16,383 pixels a side."""
QUALITY = 75
NEIGHBORS_SHOWN = 8
COARSER = "coarser"
"""The relation of a picture that has only a coarser class of its query."""


class Tiles:
    """A sheet of small pictures, which holds each picture once."""

    def __init__(self) -> None:
        self._number_by_path: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._number_by_path)

    def place(self, path: str) -> tuple[int, int]:
        """Return the column and the row of a picture on the sheet; a new picture is added."""
        row, column = divmod(self._number_by_path.setdefault(path, len(self)), COLUMNS)
        return column, row

    @property
    def rows(self) -> int:
        """The number of rows, at least two: in CSS the position of a background in percent needs two."""
        return max(2, -(-len(self) // COLUMNS))

    def encode_sheet(self, read: ReadPicture) -> str:
        """Read all pictures, draw the sheet and return it as the data URI of a WebP image."""
        sheet = Image.new("RGB", (COLUMNS * CELL, self.rows * CELL), PAPER)
        for path in self._number_by_path:
            picture = Image.fromarray(read(path).permute(1, 2, 0).contiguous().numpy())
            fitted = ImageOps.pad(picture, (INNER, INNER), Image.Resampling.LANCZOS, color=PAPER)
            column, row = self.place(path)
            sheet.paste(fitted, (column * CELL + EDGE, row * CELL + EDGE))
        encoded = BytesIO()
        sheet.save(encoded, format="WEBP", quality=QUALITY, method=4)
        return f"data:image/webp;base64,{b64encode(encoded.getvalue()).decode()}"


@dataclass(frozen=True)
class CaptionedPicture:
    """A picture with the name of its class below it, and its relation to the query."""

    tile: tuple[int, int]  # column and row on the sheet
    name: str
    relation: str = ""  # `SAME`, `COARSER` or `OTHER`; "" for a query
    remark: str = ""


@dataclass(frozen=True)
class QueryResult:
    """A query and its nearest neighbors, nearest first."""

    query: CaptionedPicture
    superclasses: str  # the names of the query's coarser classes, the coarsest first
    remarks: Sequence[str]
    neighbors: Sequence[CaptionedPicture]


def make_sheets(table: QueryTable, tiles: Tiles, count: int = 6) -> dict[str, list[QueryResult]]:
    """Return {"Worst", "Median", "Best": up to ``count`` queries}; an empty dictionary if no query has a score."""
    score = score_queries(table)
    if np.isnan(score.values).all():
        return {}
    distances_to_median = np.abs(score.values - np.nanmedian(score.values))
    orders = {"Worst": score.values, "Median": distances_to_median, "Best": -score.values}
    return {
        title: [
            _show_query(table, row, tiles, remarks=(score.describe(row), describe_first_match(table, row)))
            for row in choose_lowest(values, table.labels[:, 0], count)
        ]
        for title, values in orders.items()
    }


def _show_query(table: QueryTable, row: int, tiles: Tiles, remarks: Sequence[str]) -> QueryResult:
    coarser = [table.class_name(label, level) for level, label in enumerate(table.labels[row].tolist()) if level]
    relations = [SAME, *[COARSER] * (len(table.levels) - 1), OTHER]
    words = [*(f"same {level}" for level in table.levels), f"other {table.levels[-1]}"]
    levels = table.find_shared_levels(NEIGHBORS_SHOWN)[row].tolist()
    neighbors = []
    for number, level in enumerate(levels):
        remark = f"{words[level]}, similarity {table.similarities[row, number]:.2f}"
        neighbors.append(_show_neighbor(table, row, number, tiles, relations[level], remark))
    return QueryResult(_show_class(table, row, tiles), " › ".join(reversed(coarser)), remarks, neighbors)


def _show_class(table: QueryTable, row: int, tiles: Tiles) -> CaptionedPicture:
    return CaptionedPicture(tiles.place(table.paths[row]), table.class_name(int(table.labels[row, 0])))


def _show_neighbor(
    table: QueryTable, row: int, number: int, tiles: Tiles, relation: str = "", remark: str = ""
) -> CaptionedPicture:
    name = table.class_name(int(table.neighbor_labels[row, number, 0]))
    return CaptionedPicture(tiles.place(table.neighbors[row, number]), name, relation, remark)


class Confusion(NamedTuple):
    """Two classes, with the number of their queries that have a positive, and of those that are mixed up.

    These have their nearest neighbor in the other class; ``examples`` are some of them with that neighbor.
    """

    names: tuple[str, str]
    mixed_up: int
    queries: int
    examples: Sequence[tuple[CaptionedPicture, CaptionedPicture]]


def find_confusions(table: QueryTable, tiles: Tiles, count: int = 12, examples: int = 3) -> list[Confusion]:
    """Find the pairs of finest classes with the most queries that are mixed up; the larger share decides ties."""
    classes, nearest = table.labels[:, 0], table.neighbor_labels[:, 0, 0]
    has_positive = ~np.isnan(score_queries(table).values)
    wrong = np.flatnonzero(has_positive & (classes != nearest) & (nearest >= 0))
    if not len(wrong):
        return []
    pair_of_query = np.sort(np.stack([classes[wrong], nearest[wrong]], axis=1), axis=1)
    pairs, pair_numbers, mixed_up = np.unique(pair_of_query, axis=0, return_inverse=True, return_counts=True)
    labels, sizes = np.unique(classes[has_positive], return_counts=True)
    size_by_label = dict(zip(labels.tolist(), sizes.tolist(), strict=True))
    queries = np.array([sum(size_by_label.get(label, 0) for label in pair) for pair in pairs.tolist()])
    order = np.lexsort((-mixed_up / queries, -mixed_up))[:count]
    return [
        Confusion(
            names=(table.class_name(int(pairs[pair, 0])), table.class_name(int(pairs[pair, 1]))),
            mixed_up=int(mixed_up[pair]),
            queries=int(queries[pair]),
            examples=[
                (_show_class(table, row, tiles), _show_neighbor(table, row, 0, tiles))
                for row in wrong[pair_numbers.reshape(-1) == pair][:examples]
            ],
        )
        for pair in order
    ]


def make_search_results(results: Sequence[Mapping[str, Any]], tiles: Tiles) -> list[QueryResult]:
    """Make what a page shows of searches; files are named without their folders, since a page is passed on.

    Args:
        results: "query", the path of a query, and its "neighbors", best first: "path", "label", "score" and, if the
            model has a threshold and probabilities, "same" and "probability" of each, as in ``dml search --json``.
        tiles: sheet of the pictures.
    """
    shown = []
    for result in results:
        query = CaptionedPicture(tiles.place(result["query"]), _name_file(result["query"]))
        shown.append(QueryResult(query, "", (), [_show_image(image, tiles) for image in result["neighbors"]]))
    if tiles.rows > MOST_ROWS:
        raise InputError(
            f"the page would have {len(tiles):,} pictures, at most {MOST_ROWS * COLUMNS:,} fit; give fewer images or a "
            "smaller -k"
        )
    return shown


def _show_image(image: Mapping[str, Any], tiles: Tiles) -> CaptionedPicture:
    name = _name_file(image["path"])
    relation = SAME if image.get("same") else ""  # what is below the threshold is unsure, and no error
    probability = f"{100 * image['probability']:.0f} %" if "probability" in image else ""
    caption = " ".join(filter(None, (image["label"] or name, f"{image['score']:.3f}", relation, probability)))
    return CaptionedPicture(tiles.place(image["path"]), caption, relation, name)


def _name_file(path: str) -> str:
    """Return the name of a file, whichever slash its path has."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]
