"""The comparison of two runs by their values at the same queries."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dml.ops.errors import InputError

Values = npt.NDArray[np.float64]
LARGEST_DRAW = 2**22
"""The number of queries that are drawn together, whose values take about 100 MB."""


class Difference(NamedTuple):
    """The mean difference of a metric, second run less first, and its confidence interval.

    Args:
        queries: number of queries with a value.
        mean: mean difference over these queries.
        low: lower end of the confidence interval.
        high: upper end of the confidence interval.
    """

    queries: int
    mean: float
    low: float
    high: float


def mean_difference(
    first: Values, second: Values, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Difference:
    """Compute the mean difference of two runs at the same queries, with a paired bootstrap interval.

    The interval holds the middle of the means of resamples (percentile interval; Efron, 1979). A resample is Q queries,
    drawn with replacement, each with its values in both runs. The interval covers the choice of the queries, not the
    choice of the seeds. Queries that are NaN in both runs are skipped.

    Args:
        first: values (Q,) of a metric, such as those of `PerQuery.values`.
        second: values (Q,) of the other run at the same queries.
        confidence: probability with which the interval holds the difference.
        resamples: number of times that the queries are drawn.
        seed: seed of the draws.

    Raises:
        InputError: if the lengths differ, a query has a value in one run alone, no query has a value, ``resamples`` is
            below 1, or ``confidence`` is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence}: expected a number between 0 and 1")
    if resamples < 1:
        raise InputError(f"resamples = {resamples}: expected at least 1")
    differences = _differences(first, second)
    differences = differences[~np.isnan(differences)]
    queries = len(differences)
    if not queries:
        raise InputError("comparison: no query has a value")
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    size = max(1, LARGEST_DRAW // queries)
    for start in range(0, resamples, size):
        positions = generator.integers(queries, size=(min(size, resamples - start), queries))
        means[start : start + size] = differences[positions].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Difference(queries, float(differences.mean()), float(low), float(high))


def most_changed(first: Values, second: Values, count: int = 10) -> npt.NDArray[np.int64]:
    """Find up to ``count`` queries whose values differ most. (Q,), (Q,) -> indices

    The largest difference, in either direction, comes first; ties are in the order of the queries. Queries with equal
    values are never found.

    Raises:
        InputError: if the lengths differ, a query has a value in one run alone, or ``count`` is below 1.
    """
    if count < 1:
        raise InputError(f"count = {count}: expected at least 1")
    sizes = np.nan_to_num(np.abs(_differences(first, second)))
    order = np.argsort(-sizes, kind="stable")[:count]
    return order[sizes[order] > 0]


def _differences(first: Values, second: Values) -> npt.NDArray[np.float64]:
    if first.shape != second.shape or first.ndim != 1:
        raise InputError(
            f"comparison of runs with values of shapes {first.shape} and {second.shape}: expected (Q,) twice"
        )
    unpaired = int((np.isnan(first) != np.isnan(second)).sum())
    if unpaired:
        raise InputError(f"comparison: {unpaired} of {len(first)} queries have a value in one run alone")
    return second - first
