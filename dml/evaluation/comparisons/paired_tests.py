"""Whether the differences of many pairs are more than chance."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def bootstrap_p_value(differences: npt.NDArray[np.float64]) -> float:
    """Compute the two-sided p-value of a difference from its bootstrap draws: how sure is it that it isn't 0?

    It is twice the share of draws on the rarer side of 0, counted with one draw more (Davison and Hinkley, 1997,
    section 4.2), so that it is never 0: the least level at which the percentile interval leaves out 0.

    Args:
        differences: (R,) mean difference of each draw.
    """
    draws = len(differences)
    below, above = np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0)
    return min(1.0, 2.0 * (min(below, above) + 1) / (draws + 1))


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests for their number (Holm, 1979).

    The k-th smallest of m is multiplied by m - k + 1, and none becomes smaller than the one before. With adjusted
    p-values below 0.05, the probability of a single false alarm among all tests is at most 5 %.

    >>> adjust_p_values([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    Args:
        p_values: p-value of each test.
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = len(values) - np.arange(len(values))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return adjusted.tolist()  # type: ignore[no-any-return]
