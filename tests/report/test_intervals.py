import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from dml.report.statistics import mean_interval
from dml.runtime.errors import InputError


def test_three_runs_by_hand() -> None:
    found = mean_interval([0.66, 0.65, 0.64])
    assert found.runs == 3
    assert found.mean == pytest.approx(0.65)
    assert found.deviation == pytest.approx(0.01)
    assert found.half_width == pytest.approx(4.302652729911275 * 0.01 / math.sqrt(3))  # t of 2 degrees of freedom


@given(
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=8).filter(lambda values: np.ptp(values) > 1e-3),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_it_is_the_interval_of_the_t_test(values: list[float], confidence: float) -> None:
    found, test = mean_interval(values, confidence), ttest_1samp(values, 0.0).confidence_interval(confidence)
    assert found.mean - found.half_width == pytest.approx(test.low)
    assert found.mean + found.half_width == pytest.approx(test.high)


def test_one_run_has_no_interval() -> None:
    found = mean_interval([0.5])
    assert (found.runs, found.mean) == (1, 0.5)
    assert math.isnan(found.deviation)
    assert math.isnan(found.half_width)


def test_refusals() -> None:
    with pytest.raises(InputError, match="no values"):
        mean_interval([])
    with pytest.raises(InputError, match=r"confidence = 95: expected a number between 0 and 1"):
        mean_interval([1.0, 2.0], 95)
