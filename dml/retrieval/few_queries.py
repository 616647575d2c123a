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
    """FAISS's threshold, one for the whole process, as threads that search at the same time need it: the lowest asked.

    A thread that put back what it had found would put back the value of another, and leave it for good.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._asked: list[int] = []
        self._own = 0  # FAISS's, while a thread asks for another

    def ask(self, threshold: int) -> None:
        """Lower the threshold, until `release`."""
        with self._lock:
            if not self._asked:
                self._own = _settings.distance_compute_blas_threshold
            self._asked.append(threshold)
            self._set()

    def release(self, threshold: int) -> None:
        """Take back what `ask` was given."""
        with self._lock:
            self._asked.remove(threshold)
            self._set()

    def _set(self) -> None:
        _settings.distance_compute_blas_threshold = min([self._own, *self._asked])


_threshold = _ProcessThreshold()


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
    _threshold.ask(FEWEST * dimension)
    try:
        yield
    finally:
        _threshold.release(FEWEST * dimension)
