import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from dml.report import statistics
from dml.report.statistics import mean_difference, mean_interval
from dml.runtime.errors import InputError

NAN = float("nan")


def test_the_interval_is_that_of_resampled_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain loop that draws whole classes of different sizes, also in several parts."""
    rng = np.random.default_rng(0)
    labels = rng.integers(40, size=300) ** 2 // 40
    second = rng.random(300) + rng.normal(0, 1, labels.max() + 1)[labels]
    queries = [second[labels == label] for label in np.unique(labels)]
    drawn = (rng.integers(len(queries), size=len(queries)) for _ in range(20_000))
    means = sorted(np.mean(np.concatenate([queries[i] for i in classes])) for classes in drawn)
    for at_once in (statistics.LARGEST_DRAW, 1000):
        monkeypatch.setattr(statistics, "LARGEST_DRAW", at_once)
        found = mean_difference(np.zeros(300), second, labels)
        assert found == mean_difference(np.zeros(300), second, labels)
        assert found.classes == len(queries)
        assert found.mean == pytest.approx(second.mean())
        assert found.low == pytest.approx(means[500], abs=0.02)
        assert found.high == pytest.approx(means[19_500], abs=0.02)


def test_queries_of_a_class_are_not_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 times 20 classes of 10 equal values: only resampled classes cover the truth as often as they say."""
    monkeypatch.setattr(statistics, "RESAMPLES", 300)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    covered = {"classes": 0, "queries": 0}
    for _ in range(300):
        values = rng.normal(0.1, 1.0, 20)[labels]
        for name, drawn in (("classes", labels), ("queries", np.arange(200))):
            found = mean_difference(np.zeros(200), values, drawn)
            covered[name] += found.low <= 0.1 <= found.high
    assert 0.85 <= covered["classes"] / 300 <= 0.98
    assert covered["queries"] / 300 < 0.65


def test_labels_of_queries_without_a_value_are_left_out() -> None:
    first, second = np.array([0.0, NAN, 1.0]), np.array([1.0, NAN, 1.0])
    difference = mean_difference(first, second, labels=np.array([4, 5, 4]))
    assert difference.classes == 1
    assert np.isnan([difference.low, difference.high]).all(), "one class tells nothing about others"


def test_pairs_stay_together_and_swapped_runs_swap_the_sign() -> None:
    (first, second), labels = np.random.default_rng(0).random((2, 50)), np.arange(50) // 5
    found = mean_difference(first, first + 0.25, labels)  # for sure, however much queries differ
    assert (found.low, found.high) == pytest.approx((0.25, 0.25))
    one, other = mean_difference(first, second, labels), mean_difference(second, first, labels)
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low), abs=1e-12)


def test_queries_with_a_value_in_one_run_alone_are_refused() -> None:
    for first, second in (([0.0, NAN], [NAN, NAN]), ([NAN], [NAN]), ([0, NAN], [0, 1])):
        with pytest.raises(InputError, match=rf"of {len(first)} queries have a value in both runs"):
            mean_difference(np.array(first), np.array(second), np.arange(len(first)))


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=8).filter(lambda values: np.ptp(values) > 1e-3))
def test_it_is_the_interval_of_the_t_test(values: list[float]) -> None:
    found, test = mean_interval(values), ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((test.low, test.high))


def test_one_run_has_no_interval() -> None:
    assert mean_interval([0.5])[:2] == (1, 0.5)
    assert np.isnan(mean_interval([0.5])[2:]).all()
