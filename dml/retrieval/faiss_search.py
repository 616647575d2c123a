"""How FAISS is asked: on its GPUs if it has some, few queries by a product, and ties in the order of the ids."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from dml.runtime.shared_settings import SharedSetting

LARGEST_K = 2047
"""The largest number of neighbors, and of searched cells, that every version of FAISS accepts on a GPU."""


def copy_to_gpus(index: Any) -> Any:
    """Return a copy of an index on all GPUs of FAISS; None if the index has to be searched on the CPU.

    FAISS has no GPU, none that searches this kind of index, such as HNSW32, or none with enough memory.
    """
    lists: Any = faiss.try_extract_index_ivf(index)
    if not faiss.get_num_gpus() or (lists is not None and lists.nprobe > LARGEST_K):
        return None
    try:
        return faiss.index_cpu_to_all_gpus(index)
    except RuntimeError:  # FAISS says by it that it can't copy the index
        return None


FEWEST = 4
"""Number of queries from which on a matrix product takes less time than comparing one query after the other."""

_settings: Any = faiss.cvar

COUNTS_COMPONENTS = _settings.distance_compute_blas_threshold > 1000
"""Whether FAISS's threshold is a number of components of all queries together, and not a number of queries."""


def _set_threshold(threshold: int) -> None:
    _settings.distance_compute_blas_threshold = threshold


_threshold: SharedSetting[int] = SharedSetting(
    lambda: int(_settings.distance_compute_blas_threshold), _set_threshold, choose=min
)
"""FAISS's threshold, one for the whole process: the lowest that the searches under way need."""


@contextmanager
def multiplying_few_queries(dimension: int) -> Iterator[None]:
    """Let FAISS compare `FEWEST` queries or more with all vectors by a matrix product, while the body runs.

    FAISS 1.15 does so from 128,000 components on, such as 1,000 queries with 128 dimensions. Fewer queries took three
    to eight times as long. Versions that do so from 20 queries on are left as they are. Threads may run it at the same
    time.

    Args:
        dimension: size D of the vectors.
    """
    if not COUNTS_COMPONENTS:
        yield
        return
    with _threshold.hold(FEWEST * dimension):
        yield


Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Search = Callable[[npt.NDArray[Any], int], tuple[Floats, Integers]]
"""Function of queries (Q, D) and k that returns scores (Q, k) and ids (Q, k), best first."""

MOST_TIES = 1000
"""The default of the largest number of vectors beyond the k-th that are searched for equal scores."""


def sort_ties(scores: Floats, ids: Integers) -> tuple[Floats, Integers]:
    """Sort neighbors (Q, k) with equal scores by their ids, in place; FAISS has sorted them by descending score.

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
    """Find the k best neighbors, of which those with equal scores have the smallest ids and are sorted by them.

    The search keeps any of the vectors that share the k-th score, so it is repeated with a larger k for the queries
    whose next neighbor has that score too.

    Args:
        search: function that searches all vectors exactly.
        queries: (Q, D) queries, as ``search`` takes them.
        k: number of neighbors, 1 to ``count``.
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
