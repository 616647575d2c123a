"""Ranges of integers, many at a time."""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def join_ranges(firsts: Integers, lengths: Integers) -> Integers:
    """Concatenate the ranges first, first + 1, ..., first + length - 1. (T,), (T,) -> (sum of lengths,)"""
    before = np.cumsum(lengths) - lengths
    ranges: Integers = np.arange(lengths.sum()) + np.repeat(firsts - before, lengths)
    return ranges
