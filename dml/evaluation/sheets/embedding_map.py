from typing import Any

import numpy as np
import numpy.typing as npt

from dml.evaluation.sheets.pictures import choose_queries
from dml.evaluation.unit_embeddings import UnitEmbeddings
from dml.ops.errors import InputError
from dml.retrieval.rows import Embeddings

POINTS = 4000
"""The largest number of points on a map, which takes 15 seconds on one core."""

FEWEST = 5
"""The smallest number of points that have neighbourhoods to keep."""


def embedding_map(
    embeddings: Embeddings | UnitEmbeddings, *, points: int = POINTS, seed: int = 0
) -> npt.NDArray[np.float32]:
    """Compute places in the plane at which near embeddings stay near, by t-SNE. (N, D) -> (N, 2) float32

    openTSNE runs on the unit embeddings: Barnes-Hut, perplexity 30, or (n - 1) / 3 if that is less, from the first two
    principal components. The same input gives the same places on the same machine. Rows that are not drawn are NaN.

    Args:
        embeddings: (N, D) embeddings of any real type.
        points: number of rows to draw, at random; fewer rows are all drawn, but fewer than 5 make no map.
        seed: seed of the choice of rows and of t-SNE.

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
