"""Confidence intervals and tests of metrics, over queries, over classes and over runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dml.evaluation.evaluator import Evaluator
from dml.evaluation.per_query import read_queries
from dml.retrieval.rows import Embeddings
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder

Values = npt.NDArray[np.float64]
LARGEST_DRAW = 2**22
"""The number of queries or classes that are drawn together, whose values take about 100 MB."""
RESAMPLES, SEED = 2000, 0
"""The number of draws of test classes, and their seed: all results see the same draws."""
ENDS = (0.025, 0.975)
"""The quantiles between which a 95 % interval lies."""
PER_QUERY = {"recall@1": "level0/recall@1", "map@r": "level0/map@r"}
"""The metrics with a value for each query, and their names in metrics.json and per_query.parquet."""
DIGITS = 3
"""Decimals of the sums."""


class Difference(NamedTuple):
    """The mean difference of a metric at the queries of some classes, second run less first, and its 95 % interval."""

    mean: float
    low: float
    high: float
    classes: int


def mean_difference(first: Values, second: Values, labels: npt.NDArray[np.int64]) -> Difference:
    """Compute the mean difference of two runs at the same queries (Q,), with a paired bootstrap interval.

    The interval holds the middle of the means of resamples (percentile interval; Efron, 1979). A resample is C classes,
    drawn with replacement, each with all its queries and their values in both runs (cluster bootstrap; Davison and
    Hinkley, 1997, section 3.8): queries of one class are easy or hard together, and an interval that takes them for
    independent is too short. It covers the choice of the classes, not the choice of the seeds; of a single class its
    ends are NaN. Queries that are NaN in both runs are skipped; one that is NaN in one run alone raises InputError.
    """
    differences = second - first
    has_value = ~np.isnan(differences)
    if (np.isnan(first) & np.isnan(second) != ~has_value).any() or not has_value.any():
        raise InputError(f"comparison: {has_value.sum()} of {len(first)} queries have a value in both runs")
    counts, sums = sum_by_class(labels, {"difference": differences})
    means = _resample_means(np.array(sums["difference"]), np.array(counts))
    low, high = np.quantile(means, ENDS) if len(counts) > 1 else (np.nan, np.nan)
    return Difference(float(differences[has_value].mean()), float(low), float(high), len(counts))


@dataclass(frozen=True)
class ClassSums:
    """The metrics of some runs that were tested on the same queries."""

    counts: list[int]  # queries of each test class
    sums: dict[str, list[list[float]]]  # {metric: for each run, its sum over the queries of each test class}

    def run_means(self, metric: str) -> list[float]:
        """Return the mean of a metric over all queries, for each run."""
        return [sum(row) / sum(self.counts) for row in self.sums[metric]]

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over all queries and runs."""
        return float(np.mean(self.run_means(metric)))

    def interval(self, metric: str, less: "ClassSums | None" = None) -> tuple[float, float]:
        """Compute the 95 % interval of a metric, or of its difference to other runs with the same test classes."""
        sums = np.mean(self.sums[metric], axis=0)
        if less is not None:
            if less.counts != self.counts:
                raise InputError("results to be compared: tested on different classes")
            sums = sums - np.mean(less.sums[metric], axis=0)
        low, high = np.quantile(_resample_means(sums, np.asarray(self.counts)), ENDS)
        return float(low), float(high)


def _resample_means(sums: npt.NDArray[Any], counts: npt.NDArray[Any]) -> Values:
    """Draw groups of ``counts`` (C,) values with sums (C,), with replacement -> (RESAMPLES,) mean of each draw."""
    generator = np.random.default_rng(SEED)
    means = np.empty(RESAMPLES)
    groups = len(sums)
    size = max(1, LARGEST_DRAW // groups)
    for start in range(0, RESAMPLES, size):
        positions = generator.integers(groups, size=(min(size, RESAMPLES - start), groups))
        means[start : start + size] = sums[positions].sum(axis=1) / counts[positions].sum(axis=1)
    return means


def clopper_pearson(successes: float, trials: int) -> tuple[float, float]:
    """Compute the 95 % interval of a probability from independent trials (Clopper and Pearson, 1934).

    ``successes`` may be a sum of shares. They vary less than trials of the same mean, so it is wider than need be.

    >>> [round(end, 4) for end in clopper_pearson(990, 1000)]
    [0.9817, 0.9952]
    """
    from scipy.special import betaincinv  # late: most commands need none of scipy

    low = betaincinv(successes, trials - successes + 1, ENDS[0]) if successes > 0 else 0.0
    return float(low), float(betaincinv(successes + 1, trials - successes, ENDS[1]) if successes < trials else 1.0)


def sum_by_class(
    labels: npt.NDArray[np.int64], values: Mapping[str, npt.NDArray[np.float64]]
) -> tuple[list[int], dict[str, list[float]]]:
    """Sum values of queries by class, without queries that are NaN -> number of queries, sums, in order of the labels.

    ``labels`` and ``values`` are (Q,); NaN for the same queries in every metric.
    """
    has_value = ~np.isnan(next(iter(values.values())))
    _, classes = np.unique(labels[has_value], return_inverse=True)
    sums = {name: np.bincount(classes, column[has_value]).tolist() for name, column in values.items()}
    return np.bincount(classes).tolist(), sums


def average_by_class(evaluator: Evaluator, embeddings: Embeddings, rows: Tensor, metric: str) -> Values:
    """Compute the mean of a metric over the queries of each class (C,); of a metric without queries its value (1,).

    ``rows`` (N,) are those of the evaluator's table to which the embeddings (N, D) belong.
    """
    evaluated = evaluator.evaluate(embeddings, rows)
    for part in evaluated.lists:
        if metric in part.values:
            labels = evaluator.table.labels[rows.numpy()[part.queries], 0]
            counts, sums = sum_by_class(labels, {metric: part.values[metric]})
            return np.divide(sums[metric], counts)
    return np.array([evaluated.metrics[metric]])


def sum_test_by_class(folder: RunFolder) -> ClassSums:
    """Read the test of a finished run, and sum the metrics `PER_QUERY` by class; the sums are rounded to be stored."""
    queries = read_queries(folder.queries_file)
    values = {metric: queries.metrics[column] for metric, column in PER_QUERY.items()}
    counts, sums = sum_by_class(queries.labels[:, 0], values)
    return ClassSums(counts, {metric: [[round(value, DIGITS) for value in row]] for metric, row in sums.items()})


class Interval(NamedTuple):
    """The mean of independent runs with Student's t interval; without a deviation and a width for a single run."""

    runs: int
    mean: float
    deviation: float  # of one run, with n - 1 in the denominator
    half_width: float  # half the 95 % confidence interval of the mean


def mean_interval(values: Sequence[float]) -> Interval:
    """Compute the mean of independent runs, of which there is at least one, with its confidence interval.

    >>> mean_interval([1.0, 2.0, 3.0]).mean
    2.0
    """
    runs, mean = len(values), float(np.mean(values))
    if runs == 1:
        return Interval(1, mean, float("nan"), float("nan"))
    from scipy.stats import t  # late: it takes most of a second, and most commands need none

    deviation = float(np.std(values, ddof=1))
    return Interval(runs, mean, deviation, float(t.ppf(ENDS[1], runs - 1)) * deviation / runs**0.5)
