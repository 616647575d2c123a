"""The order of neighbours with equal scores, such as copies of an image, in a search that leaves it open."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Search = Callable[[Floats, int], tuple[Floats, Integers]]
"""Function of queries (Q, D) and k that returns scores (Q, k) and ids (Q, k), best first."""

MOST_TIES = 1000
"""The largest number of vectors beyond the k-th that are searched for equal scores."""


def sort_ties(scores: Floats, ids: Integers) -> tuple[Floats, Integers]:
    """Sort neighbours (Q, k), best first, by their ids where their scores are equal.

    >>> sort_ties(np.float32([[0.9, 0.5, 0.5]]), np.array([[4, 7, 2]]))[1].tolist()
    [[4, 2, 7]]
    """
    order = np.lexsort((ids, -scores), axis=1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1)


def search_with_ties(search: Search, queries: Floats, k: int, count: int) -> tuple[Floats, Integers]:
    """Find the k best neighbours, of which those with equal scores have the smallest ids and are sorted by them.

    The search keeps any of the vectors that share the k-th score, so it is repeated with a larger k for the queries
    whose next neighbour has that score too.

    Args:
        search: exact search.
        queries: (Q, D) queries.
        k: number of neighbours, 1 to ``count``.
        count: number of vectors that are searched.

    Returns:
        Scores (Q, k) and ids (Q, k), best first. If more than `MOST_TIES` vectors share the k-th score, they may be
        any of these.
    """
    scores, ids = sort_ties(*search(queries, min(k + 1, count)))
    tied = np.flatnonzero(scores[:, k - 1] == scores[:, -1])
    scores, ids = scores[:, :k], ids[:, :k]
    depth = k + 1
    while len(tied) and depth < min(count, k + MOST_TIES):
        depth = min(count, 2 * depth)
        deeper_scores, deeper_ids = sort_ties(*search(queries[tied], depth))
        scores[tied], ids[tied] = deeper_scores[:, :k], deeper_ids[:, :k]
        tied = tied[deeper_scores[:, k - 1] == deeper_scores[:, -1]]
    return scores, ids
