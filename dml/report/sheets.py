"""Queries with what they find, and pairs of classes that are mixed up, with their small pictures."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from dml.evaluation.per_query import QueryTable, choose_lowest, describe_first_match, score_queries
from dml.report.pictures import COARSER, OTHER, SAME, ReadPicture
from dml.runtime.errors import InputError

INNER, EDGE = 64, 1
"""Pixels of a picture's side and of the margin around it: browsers blend the edges of neighboring scaled tiles."""
CELL = INNER + 2 * EDGE
COLUMNS = 64
"""Pictures in a row."""
MOST_ROWS = 16_383 // CELL
"""Rows of a sheet: 248, of 15,872 pictures. WebP images have at most 16,383 pixels a side."""
PAPER = "#FFFFFF"
QUALITY = 75


class Tile(NamedTuple):
    """The position of a picture on the sheet."""

    column: int
    row: int


class Tiles:
    """A sheet of small pictures, which holds each picture once."""

    def __init__(self) -> None:
        self._number_by_path: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._number_by_path)

    def number(self, path: str) -> int:
        """Return the number of a picture on the sheet; a new picture is added."""
        return self._number_by_path.setdefault(path, len(self._number_by_path))

    def place(self, path: str) -> Tile:
        """Return the position of a picture on the sheet; a new picture is added."""
        row, column = divmod(self.number(path), COLUMNS)
        return Tile(column, row)

    @property
    def rows(self) -> int:
        """The number of rows, at least two: in CSS the position of a background in percent needs two."""
        return max(2, -(-len(self._number_by_path) // COLUMNS))

    def encode_sheet(self, read: ReadPicture) -> str:
        """Read all pictures, draw the sheet and return it as the data URI of a WebP image."""
        sheet = Image.new("RGB", (COLUMNS * CELL, self.rows * CELL), PAPER)
        for path, number in self._number_by_path.items():
            picture = Image.fromarray(read(path).permute(1, 2, 0).contiguous().numpy())
            fitted = ImageOps.pad(picture, (INNER, INNER), Image.Resampling.LANCZOS, color=PAPER)
            row, column = divmod(number, COLUMNS)
            sheet.paste(fitted, (column * CELL + EDGE, row * CELL + EDGE))
        encoded = BytesIO()
        sheet.save(encoded, format="WEBP", quality=QUALITY, method=4)
        return f"data:image/webp;base64,{b64encode(encoded.getvalue()).decode()}"


NEIGHBORS_SHOWN = 8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CaptionedPicture:
    """A picture with the name of its class below it.

    ``relation`` to its query is `SAME`, `COARSER` or `OTHER`, "" for a query. ``remark`` says which level it shares,
    and how similar it is.
    """

    tile: Tile
    name: str
    relation: str = ""
    remark: str = ""


@dataclass(frozen=True)
class QueryResult:
    """A query and its nearest neighbors, nearest first.

    ``superclasses`` are the names of the query's coarser classes, the coarsest first.
    """

    query: CaptionedPicture
    superclasses: str
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
    labels = table.labels[row].tolist()
    superclasses = [table.class_name(label, level) for level, label in enumerate(labels) if level]
    return QueryResult(
        query=CaptionedPicture(tiles.place(table.paths[row]), table.class_name(labels[0])),
        superclasses=" › ".join(reversed(superclasses)),
        remarks=remarks,
        neighbors=_show_neighbors(table, row, tiles),
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


Example = tuple[CaptionedPicture, CaptionedPicture]
"""A query and its nearest neighbor."""


@dataclass(frozen=True)
class Confusion:
    """Two classes, with the queries of either class whose nearest neighbor is in the other.

    ``queries`` counts those of both classes that have a positive, ``mixed_up`` those whose nearest neighbor is in the
    other class; ``examples`` are some of these.
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
    """Find the pairs of finest classes with the most queries that are mixed up; the larger share decides ties."""
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


@dataclass(frozen=True)
class FoundImage:
    """An image that a search found.

    ``same`` tells whether the score is at least the model's threshold, so that the image is surely of the query's
    class; None without a threshold. ``probability`` of the same is None if the model has none.
    """

    path: str
    label: str
    score: float
    same: bool | None
    probability: float | None = None


@dataclass(frozen=True)
class ImageSearches:
    """Searches of one index.

    ``choice`` is the meaning of the threshold, in words; ``prior`` is the share of pairs of one class for which the
    probabilities are, in percent, or empty. ``queries`` are the paths of queries, each with its images, best first.
    """

    index: str
    size: int
    threshold: float | None
    queries: Sequence[tuple[str, Sequence[FoundImage]]]
    prior: str = ""
    choice: str = ""


def make_search_results(searches: ImageSearches, tiles: Tiles) -> list[QueryResult]:
    """Make what a page shows of searches; files are named without their folders, since a page is passed on.

    Raises:
        InputError: if the pictures are too many for one sheet.
    """
    results = [
        QueryResult(
            CaptionedPicture(tiles.place(query), _name_file(query)),
            "",
            (),
            [_show_image(image, tiles) for image in images],
        )
        for query, images in searches.queries
    ]
    if tiles.rows > MOST_ROWS:
        raise InputError(
            f"the page would have {len(tiles):,} pictures, at most {MOST_ROWS * COLUMNS:,} fit; give fewer images or a "
            "smaller -k"
        )
    return results


def _show_image(image: FoundImage, tiles: Tiles) -> CaptionedPicture:
    name = _name_file(image.path)
    relation = SAME if image.same else ""  # what is below the threshold is unsure, and no error
    probability = "" if image.probability is None else f"{100 * image.probability:.0f} %"
    caption = " ".join(filter(None, (image.label or name, f"{image.score:.3f}", relation, probability)))
    return CaptionedPicture(tiles.place(image.path), caption, relation, name)


def _name_file(path: str) -> str:
    """Return the name of a file, whichever slash its path has."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]
