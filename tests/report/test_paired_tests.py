"""p-values of bootstrap draws, and Holm's correction, against the textbook."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.report.statistics import adjust_p_values, bootstrap_p_value, resample_means


def reject_by_holm(p_values: list[float], level: float) -> list[bool]:
    """Which tests Holm's procedure rejects: from the smallest on, until one isn't small enough."""
    rejected = [False] * len(p_values)
    left = sorted(range(len(p_values)), key=lambda i: p_values[i])
    while left and p_values[left[0]] <= level / len(left):
        rejected[left.pop(0)] = True
    return rejected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.999))
def test_adjusted_values_reject_what_holms_procedure_rejects(p_values: list[float], level: float) -> None:
    adjusted = adjust_p_values(p_values)
    if min(abs(value - level) for value in adjusted) < 1e-9:  # at the border, rounding decides
        return
    assert [value <= level for value in adjusted] == reject_by_holm(p_values, level)


def test_adjusted_values_of_an_example() -> None:
    """The example of Wright, Biometrics 48 (1992), worked by hand: 4, 3, 2 and 1 times the sorted values."""
    assert adjust_p_values([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_p_values([0.9, 0.8]) == [1, 1]
    assert adjust_p_values([0.2]) == [0.2]


def test_the_p_value_of_draws() -> None:
    draws = np.array([0.5] * 95 + [-0.1] * 4)
    assert bootstrap_p_value(draws) == pytest.approx(2 * 5 / 100)
    assert bootstrap_p_value(-draws) == bootstrap_p_value(draws)
    assert bootstrap_p_value(np.ones(999)) == pytest.approx(2 / 1000)
    assert bootstrap_p_value(np.zeros(10)) == 1


def test_without_a_difference_the_p_value_is_uniform() -> None:
    """Of tests without a difference a tenth has a p-value below 0.1, and half have one below 0.5."""
    rng = np.random.default_rng(0)
    values = np.array(
        [bootstrap_p_value(resample_means(rng.normal(size=100), np.ones(100), 400, seed)) for seed in range(400)]
    )
    assert np.mean(values < 0.1) == pytest.approx(0.1, abs=0.04)
    assert np.mean(values < 0.5) == pytest.approx(0.5, abs=0.07)
