"""How FAISS compares few queries with all vectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import faiss

FEWEST = 4
"""Number of queries from which on a matrix product takes less time than comparing one query after the other."""

_settings: Any = faiss.cvar

COUNTS_COMPONENTS = _settings.distance_compute_blas_threshold > 1000
"""Whether FAISS's threshold is a number of components of all queries together, and not a number of queries."""


class _ProcessThreshold:
    """FAISS's threshold, one for the whole process: the lowest that the searches under way request.

    A search that restored the value which it had read would restore that of another thread, and leave it for good.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: list[int] = []
        self._original = 0  # FAISS's threshold before the first of the requests

    def lower(self, threshold: int) -> None:
        """Lower the threshold until `restore` is called with the same number."""
        with self._lock:
            if not self._requests:
                self._original = _settings.distance_compute_blas_threshold
            self._requests.append(threshold)
            self._apply()

    def restore(self, threshold: int) -> None:
        """End what `lower` began."""
        with self._lock:
            self._requests.remove(threshold)
            self._apply()

    def _apply(self) -> None:
        _settings.distance_compute_blas_threshold = min([self._original, *self._requests])


_process_threshold = _ProcessThreshold()


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
    _process_threshold.lower(FEWEST * dimension)
    try:
        yield
    finally:
        _process_threshold.restore(FEWEST * dimension)
