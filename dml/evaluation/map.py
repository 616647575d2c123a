from typing import Any

import numpy as np
import numpy.typing as npt

from dml.evaluation.pictures import choose_queries
from dml.ops.errors import InputError
from dml.retrieval.rows import Embeddings, unit_rows

POINTS = 4000  # 15 s on one core
FEWEST = 5  # fewer have no neighbourhoods to keep


def embedding_map(embeddings: Embeddings, *, points: int = POINTS, seed: int = 0) -> npt.NDArray[np.float32]:
    """(N, D) -> places in the plane (N, 2) float32, NaN for the rows that are not drawn.

    t-SNE (openTSNE: Barnes-Hut, perplexity 30, or (n - 1) / 3 if that is less) of `points` rows drawn with `seed`, or
    all if there are no more, at unit length. It starts from their first two principal components. The same input gives
    the same places on the same machine.

    Raises:
        InputError: with points < 5, or embeddings that are not finite.
    """
    # numba's and scikit-learn's import takes seconds, and most of what imports evaluation draws no map
    from openTSNE import TSNE

    if points < FEWEST:
        raise InputError(f"points = {points}: at least {FEWEST} make a map")
    rows = unit_rows(embeddings, "embeddings").cpu().numpy()
    places = np.full((len(rows), 2), np.nan, dtype=np.float32)
    if len(rows) < FEWEST:
        return places
    chosen = choose_queries(len(rows), min(points, len(rows)), seed)
    drawn = rows[chosen]
    varied = drawn.shape[1] > 1 and np.ptp(drawn, axis=0).any()  # else there are no two components
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
