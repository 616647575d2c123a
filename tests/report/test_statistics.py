from typing import Any

import numpy as np
import pytest

from dml.report import statistics
from dml.report.statistics import mean_difference
from dml.runtime.errors import InputError

NAN = float("nan")


def test_the_interval_is_that_of_resampled_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain loop over resamples with draws of its own, also in several parts."""
    rng = np.random.default_rng(0)
    first, second = rng.random(200), rng.random(200) + 0.1
    means = sorted(np.mean((second - first)[rng.integers(200, size=200)]) for _ in range(20_000))
    for at_once in (statistics.LARGEST_DRAW, 1000):
        monkeypatch.setattr(statistics, "LARGEST_DRAW", at_once)
        found = mean_difference(first, second)
        assert found.queries == 200
        assert found.mean == pytest.approx(np.mean(second) - np.mean(first))
        assert found.low == pytest.approx(means[500], abs=2e-3)
        assert found.high == pytest.approx(means[19_500], abs=2e-3)


def test_the_interval_is_that_of_resampled_classes() -> None:
    """Against a plain loop that draws whole classes of different sizes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(40, size=300) ** 2 // 40
    second = rng.random(300) + rng.normal(0, 1, labels.max() + 1)[labels]
    queries = [second[labels == label] for label in np.unique(labels)]
    drawn = (rng.integers(len(queries), size=len(queries)) for _ in range(20_000))
    means = sorted(np.mean(np.concatenate([queries[i] for i in classes])) for classes in drawn)
    found = mean_difference(np.zeros(300), second, labels=labels)
    assert (found.queries, found.classes) == (300, len(queries))
    assert found.mean == pytest.approx(second.mean())
    assert found.low == pytest.approx(means[500], abs=0.02)
    assert found.high == pytest.approx(means[19_500], abs=0.02)
    # classes of one query each are queries
    alone = mean_difference(np.zeros(300), second, labels=np.arange(300))
    assert alone[:4] == mean_difference(np.zeros(300), second)[:4]


def test_queries_of_a_class_are_not_independent() -> None:
    """300 times 20 classes of 10 equal values: only resampled classes cover the truth as often as they say."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    covered = {"classes": 0, "queries": 0}
    for _ in range(300):
        values = rng.normal(0.1, 1.0, 20)[labels]
        for name, drawn in (("classes", labels), ("queries", None)):
            found = mean_difference(np.zeros(200), values, labels=drawn, confidence=0.9, resamples=300)
            covered[name] += found.low <= 0.1 <= found.high
    assert 0.80 <= covered["classes"] / 300 <= 0.96
    assert covered["queries"] / 300 < 0.6


def test_labels_of_queries_without_a_value_are_left_out() -> None:
    first, second = np.array([0.0, NAN, 1.0]), np.array([1.0, NAN, 1.0])
    difference = mean_difference(first, second, labels=np.array([4, 5, 4]))
    assert difference.classes == 1
    assert np.isnan([difference.low, difference.high]).all(), "one class tells nothing about others"
    with pytest.raises(InputError, match=r"labels of shape \(2,\), expected \(3,\)"):
        mean_difference(first, second, labels=np.array([4, 5]))


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """300 times 80 queries of a normal difference of mean 0.1; the binomial's deviation is 2 %."""
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(300):
        found = mean_difference(np.zeros(80), rng.normal(0.1, 1.0, 80), confidence=0.9, resamples=500, seed=seed)
        covered += found.low <= 0.1 <= found.high
    assert 0.84 <= covered / 300 <= 0.96


def test_pairs_stay_together() -> None:
    """Runs that differ by the same amount at every query differ by it for sure, however much queries differ."""
    first = np.random.default_rng(0).random(50)
    found = mean_difference(first, first + 0.25)
    assert (found.low, found.high) == pytest.approx((0.25, 0.25))


def test_the_seed_decides() -> None:
    first, second = np.random.default_rng(0).random((2, 50))
    assert mean_difference(first, second, seed=1) == mean_difference(first, second, seed=1)
    assert mean_difference(first, second, seed=1) != mean_difference(first, second, seed=2)


def test_swapped_runs_swap_the_sign() -> None:
    first, second = np.random.default_rng(0).random((2, 50))
    one, other = mean_difference(first, second), mean_difference(second, first)
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low), abs=1e-12)


def test_queries_without_a_value_are_left_out() -> None:
    first, second = np.array([0.0, NAN, 1.0, 0.5]), np.array([1.0, NAN, 1.0, 0.5])
    found = mean_difference(first, second)
    assert found == mean_difference(first[[0, 2, 3]], second[[0, 2, 3]])
    assert (found.queries, found.mean) == (3, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros(3), np.zeros(4), r"shapes \(3,\) and \(4,\)"),
        (np.zeros((3, 1)), np.zeros((3, 1)), r"expected \(Q,\) twice"),
        (np.array([0.0, NAN]), np.array([NAN, NAN]), "1 of 2 queries have a value in one run alone"),
    ],
)
def test_errors(first: Any, second: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mean_difference(first, second)


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [
        ([NAN], {}, "no query has a value"),
        ([], {}, "no query has a value"),
        ([1.0], {"confidence": 1.0}, "confidence = 1.0"),
        ([1.0], {"resamples": 0}, "resamples = 0"),
    ],
)
def test_errors_of_the_interval(values: list[float], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mean_difference(np.array(values), np.array(values), **settings)
