"""The map of the embeddings: where each picture is, and in which colours."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dml.evaluation.per_query import QueryTable
from dml.evaluation.report.sheets import same_class
from dml.evaluation.report.tiles import COLUMNS, Tiles

WIDTH = 4096  # places are whole numbers from 0 to this
FEW = 12  # classes that colours can tell apart
SHADES = (0.52, 0.72, 0.62, 0.82)  # OKLCH lightness
GOLDEN = 360 * (2 - (1 + math.sqrt(5)) / 2)  # degrees: hues of successive numbers lie far apart


def scatter(table: QueryTable, tiles: Tiles) -> dict[str, Any] | None:
    """What the page's script draws, None if the table has no places.

    x, y and tile hold a number a point; a colouring is named, and holds the name and the colour of each of its
    classes and, a number a point, which is its class. The last one says whether the nearest neighbour is right.
    """
    if table.positions is None:
        return None
    rows = np.flatnonzero(~np.isnan(table.positions).any(axis=1))
    places = table.positions[rows].astype(np.float64)
    if np.ptp(places[:, 1]) > np.ptp(places[:, 0]):
        places = places[:, ::-1]  # t-SNE has no up and down, and screens are wide
    places = places - places.min(axis=0)
    places *= WIDTH / max(float(places[:, 0].max()), 1e-9)
    x, y = np.rint(places.T).astype(int).tolist()
    return {
        "width": WIDTH,
        "height": max(*y, 1),
        "x": x,
        "y": y,
        "columns": COLUMNS,
        "tile": [tiles.index(path) for path in table.paths[rows]],
        "colourings": [*_levels(table, rows), _hits(table, rows)],
    }


def _levels(table: QueryTable, rows: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """A colouring a level, coarsest first."""
    found: list[dict[str, Any]] = []
    families: npt.NDArray[np.int64] | None = None
    for level in reversed(range(len(table.levels))):
        labels, of = np.unique(table.labels[rows, level], return_inverse=True)
        if len(labels) <= FEW:
            families, colours = of, few_colours(len(labels))
        else:
            colours = many_colours(_majority(of, families) if families is not None else None, len(labels))
        names = [table.class_name(label, level) for label in labels.tolist()]
        found.append(_colouring(table.levels[level], names, colours, of))
    return found


def _hits(table: QueryTable, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    finest = table.levels[0]
    names = [f"of another {finest}", f"of the same {finest}"]
    return _colouring("nearest neighbour", names, ["var(--other)", "var(--same)"], same_class(table)[rows, 0])


def _colouring(name: str, names: list[str], colours: list[str], of: npt.NDArray[Any]) -> dict[str, Any]:
    return {"name": name, "classes": names, "colours": colours, "of": of.astype(int).tolist()}


def _majority(of: npt.NDArray[np.int64], families: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The family that most of a class's points are in, for each class."""
    counts = np.zeros((of.max() + 1, families.max() + 1), dtype=np.int64)
    np.add.at(counts, (of, families), 1)
    families_of: npt.NDArray[np.int64] = counts.argmax(axis=1)
    return families_of


def few_colours(count: int) -> list[str]:
    """Hues evenly apart, light and dark in turn: neighbouring hues differ in lightness, too."""
    return [_colour(360 * i / count, (0.56, 0.76)[i % 2]) for i in range(count)]


def many_colours(families: npt.NDArray[np.int64] | None, count: int) -> list[str]:
    """Shades of the family's hue, in the order of the classes; without families hues all round."""
    if families is None:
        return [_colour(GOLDEN * i, SHADES[i % len(SHADES)]) for i in range(count)]
    hues = int(families.max()) + 1
    place = [int((families[:i] == family).sum()) for i, family in enumerate(families)]
    turn = 360 / hues / 4  # to either side: a family keeps to itself half of the way to the next
    return [
        _colour(360 * family / hues + turn * (i // len(SHADES) % 3 - 1), SHADES[i % len(SHADES)])
        for family, i in zip(families.tolist(), place, strict=True)
    ]


def _colour(hue: float, lightness: float) -> str:
    return f"oklch({lightness} 0.14 {(hue + 25) % 360:.0f})"
