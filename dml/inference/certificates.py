"""How many of the true nearest neighbors an index finds, and the search parameters that find enough of them."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.report.statistics import clopper_pearson
from dml.retrieval.rows import unit_rows
from dml.retrieval.search import drop_excluded
from dml.retrieval.vector_index import VectorIndex
from dml.runtime.errors import InputError

Array = NDArray[Any]

MOST_LABELS = 10  # in a certificate: those of which the fewest neighbors are found
TIMED_SECONDS = 0.2  # that each choice of search parameters is timed at least
ROUNDING = 1e-12  # difference of products of float32 vectors, computed in float64, that comes from rounding


def certify(
    index: VectorIndex,
    ids: NDArray[np.int64],
    labels: Sequence[str],
    queries: int | Array,
    k: int = 10,
    seed: int = 0,
    recall: float | None = None,
    vectors: Any = None,
) -> dict[str, Any]:
    """Measure the recall@k of an index of images with ids (N,) and labels, see `dml.Index.check` -> the certificate.

    ``queries`` are a number of images to draw, or vectors (Q, D) in the space of the index.
    """
    is_own = isinstance(queries, Integral)
    gallery = index.reconstruct(ids) if vectors is None else unit_rows(vectors, "vectors").numpy()
    if gallery.shape != (shape := (len(ids), index.dimension)):
        raise InputError(f"vectors: of shape {gallery.shape}, expected {shape}, one for each image of the index")
    if recall is not None and not 0.0 < recall < 1.0:
        raise InputError(f"recall={recall}: must be above 0 and below 1")
    pool: Any = gallery if is_own else queries
    excluded = ids[:, None] if is_own else np.empty((len(pool), 0), np.int64)
    count = min(queries if isinstance(queries, Integral) else len(pool), len(pool) // (1 if recall is None else 2))
    if count < 1 or not isinstance(k, Integral) or not 1 <= k <= len(ids) - excluded.shape[1]:
        raise InputError(f"queries={count}, k={k}: there must be 1 or more, among {len(ids)} images")
    order = np.random.default_rng(seed).permutation(len(pool))
    if recall is not None:
        rows = order[count : 2 * count]
        RecallTest(pool[rows], gallery, ids, k, excluded[rows]).choose_parameters(index, recall)
    rows = order[:count]
    shares = RecallTest(pool[rows], gallery, ids, k, excluded[rows]).measure(index)
    values = summarize(shares, [labels[row] if is_own else "" for row in rows])
    keeps_vectors = index.keeps_products and re.search(r"(^|,)(R?Flat|HNSW\d+)$", index.factory)
    return values | {"k": int(k), "seed": int(seed), "decoded": vectors is None and not keeps_vectors}


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

    def interval(part: Any) -> tuple[float, float, float, int]:
        return (float(np.mean(part)), *clopper_pearson(np.sum(part), len(part)), len(part))

    parts: dict[str, list[float]] = defaultdict(list)
    for share, label in zip(shares.tolist(), labels, strict=True):
        parts[label].append(share)
    rows = sorted((label, *interval(part)) for label, part in parts.items() if label)
    values = dict(zip(("recall", "low", "high", "queries"), interval(shares), strict=True))
    return values | {"labels": sorted(rows, key=lambda row: row[1])[:MOST_LABELS]}


def count_per_second(task: Callable[[], Any]) -> float:
    """Return how often a task runs in a second; the first time isn't counted."""
    task()
    count, began = 0, perf_counter()
    while (seconds := perf_counter() - began) < TIMED_SECONDS:
        task()
        count += 1
    return count / seconds
