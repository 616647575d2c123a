"""The metrics of runs, summed by test class: enough to compute every interval over the classes again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dml.evaluation.comparisons.comparison import resample_means
from dml.evaluation.per_query import read_queries
from dml.ops.errors import InputError
from dml.ops.run_folders.run_folder import RunFolder

PER_QUERY = {"recall@1": "level0/recall@1", "map@r": "level0/map@r"}
"""The metrics with a value for each query, and their names in metrics.json and per_query.parquet."""
DIGITS = 3
"""Decimals of the sums."""
SEED = 0
"""The seed of the draws of test classes: all results see the same draws."""
ENDS = (0.025, 0.975)


@dataclass(frozen=True)
class ClassSums:
    """The metrics of some runs that were tested on the same queries.

    Args:
        counts: number of queries of each test class.
        sums: {metric: for each run, the sum of its values over the queries of each test class}.
    """

    counts: list[int]
    sums: dict[str, list[list[float]]]

    def run_means(self, metric: str) -> list[float]:
        """Return the mean of a metric over all queries, for each run."""
        return [sum(row) / sum(self.counts) for row in self.sums[metric]]

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over all queries and runs."""
        return float(np.mean(self.run_means(metric)))

    def mean_sums(self, metric: str) -> npt.NDArray[np.float64]:
        """Return the sums of a metric over the queries of each test class, (C,), as means over the runs."""
        sums: npt.NDArray[np.float64] = np.asarray(self.sums[metric], dtype=np.float64).mean(axis=0)
        return sums

    def draw_means(
        self, metric: str, less: "ClassSums | None" = None, resamples: int = 2000
    ) -> npt.NDArray[np.float64]:
        """Compute the mean of a metric, or its difference to other runs, for draws of the test classes -> (resamples,).

        Args:
            metric: name of the metric.
            less: runs whose mean is subtracted; None for no difference.
            resamples: number of draws, each of as many classes as there are, with replacement.

        Raises:
            InputError: if the other runs were tested on other classes.
        """
        sums = self.mean_sums(metric)
        if less is not None:
            if less.counts != self.counts:
                raise InputError("results to be compared: tested on different classes")
            sums = sums - less.mean_sums(metric)
        return resample_means(sums, np.asarray(self.counts), resamples, SEED)

    def interval(self, metric: str, less: "ClassSums | None" = None) -> tuple[float, float]:
        """Compute the 95 % interval of `draw_means`."""
        low, high = np.quantile(self.draw_means(metric, less), ENDS)
        return float(low), float(high)


def sum_by_class(
    labels: npt.NDArray[np.int64], values: Mapping[str, npt.NDArray[np.float64]]
) -> tuple[list[int], dict[str, list[float]]]:
    """Sum values of queries by class, without queries that are NaN -> number of queries, sums, in order of the labels.

    Args:
        labels: (Q,) classes of the queries.
        values: {metric: (Q,) value of each query}, NaN for the same queries in every metric.
    """
    has_value = ~np.isnan(next(iter(values.values())))
    _, classes = np.unique(labels[has_value], return_inverse=True)
    sums = {name: np.bincount(classes, column[has_value]).tolist() for name, column in values.items()}
    return np.bincount(classes).tolist(), sums


def shorten(values: Iterable[float]) -> list[float]:
    """Round values, and make whole ones integers: a file of them is half as long."""
    rounded = (round(value, DIGITS) for value in values)
    return [int(value) if value.is_integer() else value for value in rounded]


def sum_runs_by_class(folders: Sequence[RunFolder], columns: Mapping[str, str] = PER_QUERY) -> ClassSums:
    """Read the tests of finished runs of one data set, and sum their metrics by class.

    Args:
        folders: folders of the runs.
        columns: {metric: its name in per_query.parquet}.
    """
    counts: list[int] = []
    rows: dict[str, list[list[float]]] = {metric: [] for metric in columns}
    for folder in folders:
        queries = read_queries(folder.queries_file)
        values = {metric: queries.metrics[column] for metric, column in columns.items()}
        before = counts
        counts, sums = sum_by_class(queries.labels[:, 0], values)
        if before and counts != before:
            raise InputError(f"{folder.path}: tested on other classes than {folders[0].path}")
        for metric, row in sums.items():
            rows[metric].append(shorten(row))
    return ClassSums(counts, rows)
