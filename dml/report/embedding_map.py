"""The map of the embeddings: a place in the plane for each picture, and the dots that a report draws."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from dml.evaluation.per_query import QueryTable
from dml.report.charts import draw_dots
from dml.report.pictures import choose_queries
from dml.retrieval.rows import Embeddings, UnitEmbeddings

POINTS = 1000
"""The largest number of points on a map: t-SNE places them in about 4 seconds on one core."""
FEWEST = 5
"""The smallest number of points that have neighborhoods to keep."""
FEW = 12
"""The largest number of classes that colors can tell apart."""


def embedding_map(
    embeddings: Embeddings | UnitEmbeddings, *, points: int = POINTS, seed: int = 0
) -> npt.NDArray[np.float32]:
    """Compute places in the plane at which near embeddings stay near, by t-SNE. (N, D) -> (N, 2) float32

    ``points`` rows are drawn at random; the others are NaN, as are all of fewer than 5. The same input gives the same
    places on the same machine. Source: van der Maaten and Hinton, 2008; scikit-learn's Barnes-Hut approximation.
    """
    from sklearn.manifold import TSNE  # late: it takes seconds, and most evaluations draw no map

    rows = UnitEmbeddings.normalize(embeddings).rows.cpu().numpy()
    places = np.full((len(rows), 2), np.nan, dtype=np.float32)
    if len(rows) < FEWEST:
        return places
    chosen = choose_queries(len(rows), points, seed)
    drawn = rows[chosen]
    can_project = drawn.shape[1] > 1 and np.ptp(drawn, axis=0).any()
    tsne = TSNE(
        perplexity=min(30, (len(drawn) - 1) / 3),
        init="pca" if can_project else "random",
        angle=0.8,
        max_iter=500,
        random_state=seed,
        n_jobs=1,
    )
    with threadpool_limits(1):  # threads would add in any order
        places[chosen] = tsne.fit_transform(drawn)
    return places


class MapDots(NamedTuple):
    """The dots of one class on the map: its name, a color in CSS, and an SVG path."""

    name: str
    color: str
    path: str


def draw_map(table: QueryTable) -> dict[str, Any] | None:
    """Draw the map, 100 wide, with the colors of the finest level with at most `FEW` classes; None without places."""
    if table.positions is None:
        return None
    rows = np.flatnonzero(~np.isnan(table.positions).any(axis=1))
    places = table.positions[rows].astype(np.float64)
    if np.ptp(places[:, 1]) > np.ptp(places[:, 0]):
        places = places[:, ::-1]  # t-SNE has no up and down, and screens are wide
    places = places - places.min(axis=0)
    places *= 100 / max(float(places[:, 0].max()), 1e-9)
    labels = table.labels[rows]
    level = next((i for i in range(labels.shape[1]) if len(np.unique(labels[:, i])) <= FEW), labels.shape[1] - 1)
    families = np.unique(labels[:, level]).tolist()
    colors = {label: _choose_color(i, len(families)) for i, label in enumerate(families)}
    dots = []
    for classes in np.unique(labels, axis=0).tolist():
        members = (labels == classes).all(axis=1)
        path = draw_dots(*places[members].T)
        dots.append(MapDots(table.class_name(classes[0]), colors[classes[level]], path))
    return {
        "points": len(rows),
        "height": round(float(places[:, 1].max()), 2),
        "dots": dots,
        "level": table.levels[level],
        "colors": {table.class_name(label, level): color for label, color in colors.items() if len(colors) <= FEW},
    }


def _choose_color(number: int, count: int) -> str:
    """Return the color of a class: hues are evenly spaced, light and dark alternate."""
    return f"oklch({(0.56, 0.76)[number % 2]} 0.14 {360 * number / count + 25:.0f})"
