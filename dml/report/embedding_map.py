"""The map of the embeddings: the place and the colors of each picture."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.per_query import QueryTable, compare_classes
from dml.report.pictures import choose_queries
from dml.report.sheets import COLUMNS, Tiles
from dml.retrieval.rows import Embeddings
from dml.runtime.errors import InputError
from dml.runtime.text import printable

POINTS = 4000
"""The largest number of points on a map, which takes 15 seconds on one core."""

FEWEST = 5
"""The smallest number of points that have neighborhoods to keep."""


def embedding_map(
    embeddings: Embeddings | UnitEmbeddings, *, points: int = POINTS, seed: int = 0
) -> npt.NDArray[np.float32]:
    """Compute places in the plane at which near embeddings stay near, by t-SNE. (N, D) -> (N, 2) float32

    openTSNE runs on the unit embeddings: Barnes-Hut, perplexity 30, or (n - 1) / 3 if that is less, from the first two
    principal components. The same input gives the same places on the same machine. Rows that are not drawn are NaN.

    ``points`` rows are drawn, at random; fewer rows are all drawn, but fewer than 5 make no map.

    Raises:
        InputError: if points is below 5, or an embedding is not finite.
    """
    # openTSNE imports numba and scikit-learn, which takes seconds, and most evaluations draw no map.
    from openTSNE import TSNE

    if points < FEWEST:
        raise InputError(f"points = {points}: at least {FEWEST} make a map")
    rows = UnitEmbeddings.normalize(embeddings).rows.cpu().numpy()
    places = np.full((len(rows), 2), np.nan, dtype=np.float32)
    if len(rows) < FEWEST:
        return places
    chosen = choose_queries(len(rows), min(points, len(rows)), seed)
    drawn = rows[chosen]
    varied = drawn.shape[1] > 1 and np.ptp(drawn, axis=0).any()
    tsne: Any = TSNE(
        perplexity=min(30, (len(drawn) - 1) / 3),
        metric="euclidean",
        initialization="pca" if varied else "random",
        neighbors="exact",
        negative_gradient_method="bh",  # FFT interpolation is slower below 10,000 points
        theta=0.8,
        n_jobs=1,
        random_state=seed,
    )
    places[chosen] = np.asarray(tsne.fit(drawn), dtype=np.float32)
    return places


WIDTH = 4096
"""The width of the map: places are whole numbers from 0 to this."""
FEW = 12
"""The largest number of classes that colors can tell apart."""
SHADES = (0.52, 0.72, 0.62, 0.82)
"""Values of OKLCH's lightness."""
GOLDEN_ANGLE = 360 * (2 - (1 + math.sqrt(5)) / 2)
"""Degrees between the hues of successive classes, so that the hues of any few classes lie far apart."""


def make_map(table: QueryTable, tiles: Tiles) -> dict[str, Any] | None:
    """Return the data that the page's script draws the map from; None if the table has no places.

    "x", "y" and "tile" hold a number for each point: its place, and the number of its picture. Each of "colorings"
    has a "name", the "class_names" and "colors" of its classes, and "point_classes": the class of each point. The last
    coloring tells whether the nearest neighbor has the class of the query.
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
        "tile": [tiles.number(path) for path in table.paths[rows]],
        "colorings": [*_color_levels(table, rows), _color_hits(table, rows)],
    }


def _color_levels(table: QueryTable, rows: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return a coloring for each level, the coarsest first.

    The classes of a level with many classes have shades of the colors of the next coarser level with few classes.
    """
    colorings: list[dict[str, Any]] = []
    families: npt.NDArray[np.int64] | None = None
    for level in reversed(range(len(table.levels))):
        labels, classes = np.unique(table.labels[rows, level], return_inverse=True)
        if len(labels) <= FEW:
            families, colors = classes, choose_few_colors(len(labels))
        else:
            class_families = _find_families(classes, families) if families is not None else None
            colors = choose_many_colors(class_families, len(labels))
        names = [table.class_name(label, level) for label in labels.tolist()]
        colorings.append(_make_coloring(table.levels[level], names, colors, classes))
    return colorings


def _color_hits(table: QueryTable, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    finest = table.levels[0]
    names = [f"of another {finest}", f"of the same {finest}"]
    is_hit = compare_classes(table)[rows, 0]
    return _make_coloring("nearest neighbor", names, ["var(--other)", "var(--same)"], is_hit)


def _make_coloring(name: str, names: list[str], colors: list[str], classes: npt.NDArray[Any]) -> dict[str, Any]:
    return {
        "name": printable(name),
        "class_names": [printable(class_name) for class_name in names],
        "colors": colors,
        "point_classes": classes.astype(int).tolist(),
    }


def _find_families(classes: npt.NDArray[np.int64], families: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the family (C,) that holds most points of each class, by the class and the family (P,) of each point."""
    counts = np.zeros((classes.max() + 1, families.max() + 1), dtype=np.int64)
    np.add.at(counts, (classes, families), 1)
    family_by_class: npt.NDArray[np.int64] = counts.argmax(axis=1)
    return family_by_class


def choose_few_colors(count: int) -> list[str]:
    """Return colors with evenly spaced hues; light and dark alternate, so that neighboring hues differ more."""
    return [_format_color(360 * i / count, (0.56, 0.76)[i % 2]) for i in range(count)]


def choose_many_colors(families: npt.NDArray[np.int64] | None, count: int) -> list[str]:
    """Return a color for each class: shades of the hue of its family, or all hues if there are no families."""
    if families is None:
        return [_format_color(GOLDEN_ANGLE * i, SHADES[i % len(SHADES)]) for i in range(count)]
    hues = int(families.max()) + 1
    numbers_in_family = [int((families[:i] == family).sum()) for i, family in enumerate(families)]
    turn = 360 / hues / 4  # a family takes this to either side: half of the way to the next family stays free
    return [
        _format_color(360 * family / hues + turn * (i // len(SHADES) % 3 - 1), SHADES[i % len(SHADES)])
        for family, i in zip(families.tolist(), numbers_in_family, strict=True)
    ]


def _format_color(hue: float, lightness: float) -> str:
    """Return a color in CSS, from its hue in degrees and its lightness from 0 to 1."""
    return f"oklch({lightness} 0.14 {(hue + 25) % 360:.0f})"
