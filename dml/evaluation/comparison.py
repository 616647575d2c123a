"""Two runs compared query by query."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dml.ops.errors import InputError

Values = npt.NDArray[np.float64]
AT_ONCE = 2**22  # draws; 100 MB with what is made of them


class Difference(NamedTuple):
    """The mean difference of a metric, second run less first, and its confidence interval.

    Args:
        queries: how many it is the mean of.
        mean: over these.
        low: the interval's lower end.
        high: its upper end.
    """

    queries: int
    mean: float
    low: float
    high: float


def mean_difference(
    first: Values, second: Values, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Difference:
    """What two runs score at the same queries, (Q,), (Q,) -> their mean difference with a paired bootstrap interval.

    The percentile interval (Efron, 1979): queries are drawn Q at a time with replacement, each with both its values.
    It covers the choice of queries, not of the runs' seeds. Queries without a value, NaN in both, are left out.

    Args:
        first: of `PerQuery.values`.
        second: of the other run.
        confidence: of the interval.
        resamples: times that the queries are drawn.
        seed: of the drawing.

    Raises:
        InputError: for lengths that differ, a value in one run alone, no value at all, resamples < 1, or unless
            0 < confidence < 1.
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
    drawn = np.empty(resamples)
    size = max(1, AT_ONCE // queries)
    for start in range(0, resamples, size):
        places = generator.integers(queries, size=(min(size, resamples - start), queries))
        drawn[start : start + size] = differences[places].mean(axis=1)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Difference(queries, float(differences.mean()), float(low), float(high))


def most_changed(first: Values, second: Values, count: int = 10) -> npt.NDArray[np.int64]:
    """The indices of the queries whose values differ most, (Q,), (Q,) -> (up to `count`,); equals are left out.

    The largest difference, in either direction, comes first; ties are in the order of the queries.

    Raises:
        InputError: for lengths that differ, a value in one run alone, or count < 1.
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
    alone = int((np.isnan(first) != np.isnan(second)).sum())
    if alone:
        raise InputError(f"comparison: {alone} of {len(first)} queries have a value in one run alone")
    return second - first
