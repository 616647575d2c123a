"""How FAISS compares few queries with all vectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import faiss

from dml.runtime.shared_settings import SharedSetting

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
