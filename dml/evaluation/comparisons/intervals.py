"""The confidence interval of a mean over runs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dml.ops.errors import InputError


class Interval(NamedTuple):
    """A mean over runs, with its confidence interval.

    Args:
        runs: number of runs.
        mean: mean over the runs.
        deviation: standard deviation of one run, with n - 1 in the denominator; NaN for a single run.
        half_width: half the width of the confidence interval of the mean; NaN for a single run.
    """

    runs: int
    mean: float
    deviation: float
    half_width: float


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Compute the mean of independent runs with Student's t interval.

    >>> mean_interval([1.0, 2.0, 3.0]).mean
    2.0

    Args:
        values: (n,) values, one for each run.
        confidence: probability with which the interval holds the mean.

    Raises:
        InputError: if there is no value, or confidence is not between 0 and 1.
    """
    if not len(values):
        raise InputError("mean_interval: no values")
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence}: expected a number between 0 and 1")
    runs, mean = len(values), float(np.mean(values))
    if runs == 1:
        return Interval(1, mean, float("nan"), float("nan"))
    from scipy.stats import t  # late: it takes most of a second, and most commands need none

    deviation = float(np.std(values, ddof=1))
    half_width = float(t.ppf((1 + confidence) / 2, runs - 1)) * deviation / runs**0.5
    return Interval(runs, mean, deviation, half_width)
