"""How FAISS compares few queries with all vectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import faiss

FEWEST = 4
"""Number of queries from which on a matrix product takes less time than comparing one query after the other."""

_settings: Any = faiss.cvar

COUNTS_COMPONENTS = _settings.distance_compute_blas_threshold > 1000
"""Whether FAISS's threshold is a number of components of all queries together, and not a number of queries."""


@contextmanager
def multiplying_few_queries(dimension: int) -> Iterator[None]:
    """Let FAISS compare `FEWEST` queries or more with all vectors by a matrix product, while the body runs.

    FAISS 1.15 does so from 128,000 components on, such as 1,000 queries with 128 dimensions. Fewer queries took three
    to eight times as long. Versions that do so from 20 queries on are left as they are.

    Args:
        dimension: size D of the vectors.
    """
    threshold = _settings.distance_compute_blas_threshold
    if COUNTS_COMPONENTS:
        _settings.distance_compute_blas_threshold = min(threshold, FEWEST * dimension)
    try:
        yield
    finally:
        _settings.distance_compute_blas_threshold = threshold
