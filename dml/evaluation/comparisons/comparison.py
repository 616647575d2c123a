"""The comparison of two runs by their values at the same queries."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.ops.errors import InputError

Values = npt.NDArray[np.float64]
LARGEST_DRAW = 2**22
"""The number of queries or classes that are drawn together, whose values take about 100 MB."""


class Difference(NamedTuple):
    """The mean difference of a metric, second run less first, and its confidence interval.

    Args:
        queries: number of queries with a value.
        mean: mean difference over these queries.
        low: lower end of the confidence interval.
        high: upper end of the confidence interval.
        classes: number of classes of these queries, if the interval is of resampled classes; None if it is of
            resampled queries.
    """

    queries: int
    mean: float
    low: float
    high: float
    classes: int | None = None


def mean_difference(
    first: Values,
    second: Values,
    *,
    labels: npt.NDArray[np.int64] | None = None,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Difference:
    """Compute the mean difference of two runs at the same queries, with a paired bootstrap interval.

    The interval holds the middle of the means of resamples (percentile interval; Efron, 1979). With labels, a resample
    is C classes, drawn with replacement, each with all its queries and their values in both runs (cluster bootstrap;
    Davison and Hinkley, 1997, section 3.8): queries of one class are easy or hard together, and an interval that takes
    them for independent is too short. Without labels, a resample is Q queries. The interval covers the choice of the
    classes or queries, not the choice of the seeds; of a single one its ends are NaN. Queries that are NaN in both runs
    are skipped.

    Args:
        first: values (Q,) of a metric, such as those of `PerQuery.values`.
        second: values (Q,) of the other run at the same queries.
        labels: (Q,) classes of the queries, to draw classes; None to draw queries.
        confidence: probability with which the interval holds the difference.
        resamples: number of times that the classes or queries are drawn.
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
    has_value = ~np.isnan(differences)
    differences = differences[has_value]
    if not len(differences):
        raise InputError("comparison: no query has a value")
    if labels is None:
        groups = np.arange(len(differences))
    else:
        if labels.shape != first.shape:
            raise InputError(f"comparison: labels of shape {labels.shape}, expected {first.shape}, one for each query")
        _, groups = np.unique(labels[has_value], return_inverse=True)
    means = resample_means(np.bincount(groups, differences), np.bincount(groups), resamples, seed)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2]) if groups.any() else (np.nan, np.nan)
    classes = None if labels is None else int(groups.max()) + 1
    return Difference(len(differences), float(differences.mean()), float(low), float(high), classes)


def resample_means(sums: npt.NDArray[Any], counts: npt.NDArray[Any], resamples: int, seed: int) -> Values:
    """Draw groups of values with replacement, as many as there are, again and again -> (R,) mean value of each draw.

    Args:
        sums: (C,) sum of the values of each group.
        counts: (C,) number of values of each group.
        resamples: R, the number of draws.
        seed: seed of the draws.
    """
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    groups = len(sums)
    size = max(1, LARGEST_DRAW // groups)
    for start in range(0, resamples, size):
        positions = generator.integers(groups, size=(min(size, resamples - start), groups))
        means[start : start + size] = sums[positions].sum(axis=1) / counts[positions].sum(axis=1)
    return means


def _differences(first: Values, second: Values) -> npt.NDArray[np.float64]:
    if first.shape != second.shape or first.ndim != 1:
        raise InputError(
            f"comparison of runs with values of shapes {first.shape} and {second.shape}: expected (Q,) twice"
        )
    unpaired = int((np.isnan(first) != np.isnan(second)).sum())
    if unpaired:
        raise InputError(f"comparison: {unpaired} of {len(first)} queries have a value in one run alone")
    return second - first
