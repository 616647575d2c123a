from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t

from dml.ops.errors import InputError


class Interval(NamedTuple):
    """A mean over runs, and how sure it is.

    Args:
        runs: how many.
        mean: theirs.
        deviation: the standard deviation of one run, n - 1 in the denominator; NaN of a single run.
        half_width: of the confidence interval of the mean; NaN of a single run.
    """

    runs: int
    mean: float
    deviation: float
    half_width: float


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """(n,) independent runs -> their mean with Student's t interval.

    Raises InputError without a value, or unless 0 < confidence < 1.
    """
    if not len(values):
        raise InputError("mean_interval: no values")
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence}: expected a number between 0 and 1")
    runs, mean = len(values), float(np.mean(values))
    if runs == 1:
        return Interval(1, mean, float("nan"), float("nan"))
    deviation = float(np.std(values, ddof=1))
    half_width = float(t.ppf((1 + confidence) / 2, runs - 1)) * deviation / runs**0.5
    return Interval(runs, mean, deviation, half_width)
