import numpy as np
import pytest

from dml.report import statistics
from dml.report.statistics import mean_difference
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
        assert found.classes == len(queries)
        assert found.mean == pytest.approx(second.mean())
        assert found.low == pytest.approx(means[500], abs=0.02)
        assert found.high == pytest.approx(means[19_500], abs=0.02)


def test_queries_of_a_class_are_not_independent() -> None:
    """300 times 20 classes of 10 equal values: only resampled classes cover the truth as often as they say."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    covered = {"classes": 0, "queries": 0}
    for _ in range(300):
        values = rng.normal(0.1, 1.0, 20)[labels]
        for name, drawn in (("classes", labels), ("queries", np.arange(200))):
            found = mean_difference(np.zeros(200), values, drawn, resamples=300)
            covered[name] += found.low <= 0.1 <= found.high
    assert 0.85 <= covered["classes"] / 300 <= 0.98
    assert covered["queries"] / 300 < 0.65


def test_labels_of_queries_without_a_value_are_left_out() -> None:
    first, second = np.array([0.0, NAN, 1.0]), np.array([1.0, NAN, 1.0])
    difference = mean_difference(first, second, labels=np.array([4, 5, 4]))
    assert difference.classes == 1
    assert np.isnan([difference.low, difference.high]).all(), "one class tells nothing about others"


def test_pairs_stay_together() -> None:
    """Runs that differ by the same amount at every query differ by it for sure, however much queries differ."""
    first = np.random.default_rng(0).random(50)
    found = mean_difference(first, first + 0.25, np.arange(50) // 5)
    assert (found.low, found.high) == pytest.approx((0.25, 0.25))


def test_the_seed_decides() -> None:
    runs, labels = np.random.default_rng(0).random((2, 50)), np.arange(50)
    assert mean_difference(*runs, labels, seed=1) == mean_difference(*runs, labels, seed=1)
    assert mean_difference(*runs, labels, seed=1) != mean_difference(*runs, labels, seed=2)


def test_swapped_runs_swap_the_sign() -> None:
    (first, second), labels = np.random.default_rng(0).random((2, 50)), np.arange(50)
    one, other = mean_difference(first, second, labels), mean_difference(second, first, labels)
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low), abs=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([0.0, NAN], [NAN, NAN], "0 of 2 queries have"),
        ([NAN], [NAN], "0 of 1"),
        ([0, NAN], [0, 1], "1 of 2"),
    ],
)
def test_errors(first: list[float], second: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mean_difference(np.array(first), np.array(second), np.arange(len(first)))
