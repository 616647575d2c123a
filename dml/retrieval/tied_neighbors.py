"""The order of neighbours with equal scores, such as copies of an image, in a search that leaves it open."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Search = Callable[[npt.NDArray[Any], int], tuple[Floats, Integers]]
"""Function of queries (Q, D) and k that returns scores (Q, k) and ids (Q, k), best first."""

MOST_TIES = 1000
"""The default of the largest number of vectors beyond the k-th that are searched for equal scores."""


def sort_ties(scores: Floats, ids: Integers) -> tuple[Floats, Integers]:
    """Sort neighbours (Q, k) with equal scores by their ids, in place; FAISS has sorted them by descending score.

    >>> sort_ties(np.float32([[0.9, 0.5, 0.5]]), np.array([[4, 7, 2]]))[1].tolist()
    [[4, 2, 7]]
    """
    is_tied = (scores[:, 1:] == scores[:, :-1]) & (ids[:, 1:] < ids[:, :-1])
    rows = np.flatnonzero(is_tied.any(axis=1))
    order = np.lexsort((ids[rows], -scores[rows]))
    ids[rows] = np.take_along_axis(ids[rows], order, axis=1)  # the scores are sorted already
    return scores, ids


def search_with_ties(
    search: Search, queries: npt.NDArray[Any], k: int, count: int, most_ties: int | None = None
) -> tuple[Floats, Integers]:
    """Find the k best neighbours, of which those with equal scores have the smallest ids and are sorted by them.

    The search keeps any of the vectors that share the k-th score, so it is repeated with a larger k for the queries
    whose next neighbour has that score too.

    Args:
        search: function that searches all vectors exactly.
        queries: (Q, D) queries, as ``search`` takes them.
        k: number of neighbours, 1 to ``count``.
        count: number of vectors that are searched.
        most_ties: largest number of vectors beyond the k-th that are searched for equal scores; None for `MOST_TIES`.

    Returns:
        Scores (Q, k) and ids (Q, k), best first. If more than ``most_ties`` vectors share the k-th score, they may be
        any of these.
    """
    largest_depth = min(count, k + (MOST_TIES if most_ties is None else most_ties))
    scores, ids = sort_ties(*search(queries, min(k + 1, count)))
    tied = np.flatnonzero(scores[:, k - 1] == scores[:, -1])
    scores, ids = scores[:, :k], ids[:, :k]
    depth = k + 1
    while len(tied) and depth < largest_depth:
        depth = min(count, 2 * depth)
        deeper_scores, deeper_ids = sort_ties(*search(queries[tied], depth))
        scores[tied], ids[tied] = deeper_scores[:, :k], deeper_ids[:, :k]
        tied = tied[deeper_scores[:, k - 1] == deeper_scores[:, -1]]
    return scores, ids
