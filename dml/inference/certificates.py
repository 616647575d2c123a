"""How many of the true nearest neighbors an index finds, and the search parameters that find enough of them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.report.statistics import clopper_pearson
from dml.retrieval.search import drop_excluded
from dml.retrieval.vector_index import VectorIndex
from dml.runtime.errors import InputError

Array = NDArray[Any]

MOST_LABELS = 10
"""The largest number of labels in a certificate: those of which the fewest neighbors are found."""
TIMED_SECONDS = 0.2
"""How long each choice of search parameters is timed at least."""
ROUNDING = 1e-12
"""Difference of products of float32 vectors, computed in float64, that comes from rounding."""


def describe(certificate: Mapping[str, Any], state: Sequence[Any]) -> str:
    """Describe a certificate in a line, which ends with "stale" if the index isn't in the certificate's state."""
    recall, low, high = (f"{certificate[name]:.3f}" for name in ("recall", "low", "high"))
    line = f"recall@{certificate['k']:d} {recall} ({low} to {high}) by {certificate['queries']:,} queries"
    decoded = ", among the vectors that its codes stand for" if certificate["decoded"] else ""
    return f"{line}{decoded}" + ("" if certificate["state"] == [*state] else "; stale: the index changed since")


class RecallTest:
    """Queries (Q, D) with the k vectors of a gallery (N, D), of ascending ids, that are truly nearest to each."""

    def __init__(self, queries: Array, gallery: Array, ids: Array, k: int, excluded: Array) -> None:
        self._queries, self._gallery, self._ids, self._k, self._excluded = queries, gallery, ids, k, excluded
        exact = VectorIndex(gallery.shape[1])
        exact.add(gallery, ids)
        self._least = self._score(self._search(exact)).min(axis=1, keepdims=True)

    def measure(self, index: VectorIndex) -> NDArray[np.float64]:
        """Compute the share of the nearest that an index finds; of equal scores any count. -> (Q,)"""
        return np.asarray((self._score(self._search(index)) >= self._least - ROUNDING).mean(axis=1))

    def _search(self, index: VectorIndex) -> NDArray[np.int64]:
        scores, ids = index.search(self._queries, self._k + self._excluded.shape[1])
        return drop_excluded(scores, ids, self._excluded)[1]

    def _score(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the inner products of the queries with vectors (Q, k); -inf where the id is -1."""
        rows = np.searchsorted(self._ids, ids)  # of the id -1 the first
        near = zip(rows, self._queries.astype(np.float64), strict=True)
        scores = np.stack([self._gallery[row].astype(np.float64) @ query for row, query in near])
        return np.where(ids < 0, -np.inf, scores)

    def choose_parameters(self, index: VectorIndex, wanted: float) -> None:
        """Set the fastest search parameters of those whose interval is above a recall."""
        before, lists, speeds = index.parameters, index.list_parameters(), {}
        for choices in lists:
            for parameters in choices:
                index.set_parameters(parameters)
                shares = self.measure(index)
                if clopper_pearson(shares.sum(), len(shares))[0] >= wanted:
                    speeds[parameters] = count_per_second(lambda: self._search(index))
                    break  # the next ones look at more
        index.set_parameters(max(speeds, key=lambda parameters: speeds[parameters], default=lists[0][0]))
        if not speeds:
            index.set_parameters(before)  # after the smallest values, which are FAISS's own
            line = f"recall={wanted}: {len(shares)} queries found {shares.mean():.3f} at most, or are too few to tell"
            raise InputError(f"{line}; give more, ask for less, or build the index with a factory that ends with RFlat")


def summarize(shares: Array, labels: Sequence[str]) -> dict[str, Any]:
    """Summarize the shares of queries (Q,), and those of each label but "", of which the worst are kept."""
    parts: dict[str, list[float]] = defaultdict(list)
    for share, label in zip(shares.tolist(), labels, strict=True):
        parts[label].append(share)
    parts.pop("", None)
    rows = [
        (label, float(np.mean(part)), *clopper_pearson(np.sum(part), len(part)), len(part))
        for label, part in sorted(parts.items())
    ]
    low, high = clopper_pearson(shares.sum(), len(shares))
    values = {"recall": float(shares.mean()), "low": low, "high": high, "queries": len(shares)}
    return values | {"labels": sorted(rows, key=lambda row: row[1])[:MOST_LABELS]}


def count_per_second(task: Callable[[], Any]) -> float:
    """Return how often a task runs in a second; the first time isn't counted."""
    task()
    count, began = 0, perf_counter()
    while (seconds := perf_counter() - began) < TIMED_SECONDS:
        task()
        count += 1
    return count / seconds
