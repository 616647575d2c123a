"""Swaps of classes: the distance of their sides grows, and a known shift is found."""

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg

from dml.evaluation.class_shift import (
    average_classes,
    choose_levels,
    draw_half,
    measure_distance,
    reduce_features,
    swap_classes,
)
from dml.runtime.errors import InputError

CLASSES, DIMENSIONS = 60, 6


def draw_features(seed: int, shift: float = 0.0) -> npt.NDArray[np.float64]:
    """Draw classes of one Gaussian; every second one is moved along the first axis."""
    features = np.random.default_rng(seed).normal(size=(CLASSES, DIMENSIONS))
    features[::2, 0] += shift
    return features


def distance_of_means(features: npt.NDArray[np.float64], is_test: npt.NDArray[np.bool_]) -> float:
    return float(np.linalg.norm(features[is_test].mean(axis=0) - features[~is_test].mean(axis=0)))


def try_all_swaps(features: npt.NDArray[np.float64], is_test: npt.NDArray[np.bool_]) -> float:
    """The largest move of the difference of the means along itself by any swap, as a slow loop."""
    difference = features[~is_test].mean(axis=0) - features[is_test].mean(axis=0)
    direction = difference / np.linalg.norm(difference)
    gains = []
    for first in np.flatnonzero(~is_test):
        for second in np.flatnonzero(is_test):
            swapped = is_test.copy()
            swapped[[first, second]] = True, False
            after = features[~swapped].mean(axis=0) - features[swapped].mean(axis=0)
            gains.append(float((after - difference) @ direction))
    return max(gains)


@pytest.mark.parametrize("seed", range(3))
def test_each_swap_is_the_best_one_and_increases_the_distance(seed: int) -> None:
    features = draw_features(seed)
    before = draw_half(CLASSES, seed)
    for after in swap_classes(features, before):
        direction = features[~before].mean(axis=0) - features[before].mean(axis=0)
        moved = features[~after].mean(axis=0) - features[after].mean(axis=0) - direction
        assert moved @ direction / np.linalg.norm(direction) == pytest.approx(try_all_swaps(features, before))
        assert distance_of_means(features, after) > distance_of_means(features, before)
        assert (before != after).sum() == 2
        assert after.sum() == before.sum()
        before = after
    assert try_all_swaps(features, before) <= 1e-9


def test_classes_of_two_gaussians_are_separated() -> None:
    features = draw_features(0, shift=30.0)
    *_, last = swap_classes(features, draw_half(CLASSES, 0))
    is_shifted = np.arange(CLASSES) % 2 == 0
    assert (last == is_shifted).all() or (last == ~is_shifted).all()
    levels = choose_levels(features, draw_half(CLASSES, 0), 3)
    np.testing.assert_array_equal(levels[-1].is_test, last)
    assert levels[-1].distance == pytest.approx(900, rel=0.1)


def test_levels_are_evenly_spaced_and_the_same_each_time() -> None:
    features = np.random.default_rng(0).normal(size=(600, 4))
    levels = choose_levels(features, draw_half(600, 1), 5)
    again = choose_levels(features, draw_half(600, 1), 5)
    assert [level.swaps for level in levels] == [level.swaps for level in again]
    assert levels[0].swaps == 0
    np.testing.assert_array_equal(levels[0].is_test, draw_half(600, 1))
    steps = np.diff([level.distance for level in levels])
    assert (steps > 0).all()
    np.testing.assert_allclose(steps, steps.mean(), rtol=0.15)
    assert [level.count_moved(levels[0]) for level in levels] == sorted(
        int((level.is_test != levels[0].is_test).sum()) for level in levels
    )


def test_the_distance_is_that_of_the_definition() -> None:
    features = draw_features(3) @ np.random.default_rng(4).normal(size=(DIMENSIONS, DIMENSIONS))
    is_test = draw_half(CLASSES, 0)
    first, second = (np.cov(features[side], rowvar=False) for side in (~is_test, is_test))
    expected = distance_of_means(features, is_test) ** 2
    expected += np.trace(first + second - 2 * scipy.linalg.sqrtm(first @ second)).real
    assert measure_distance(features, is_test) == pytest.approx(expected)
    assert measure_distance(np.tile(features[:30], (2, 1)), np.arange(60) < 30) == pytest.approx(0, abs=1e-9)
    line = np.array([[0.0], [2.0], [10.0], [14.0]])  # (11 - 0)^2 + (sqrt(2) - sqrt(8))^2
    assert measure_distance(line, np.array([False, False, True, True])) == pytest.approx(121 + 2)


def test_components_leave_the_covariance_of_each_side_its_rank() -> None:
    means = np.random.default_rng(0).normal(size=(21, 50))
    reduced = reduce_features(means, draw_half(21, 0), 64)
    assert reduced.shape == (21, 5)
    assert np.linalg.matrix_rank(np.cov(reduced[draw_half(21, 0)], rowvar=False)) == 5
    assert reduce_features(means, draw_half(21, 0), 2).shape == (21, 2)
    with pytest.raises(InputError, match="1 classes on one side of the split: at least 2 can be swapped"):
        reduce_features(means[:3], draw_half(3, 0), 2)


def test_class_means_and_draws() -> None:
    features = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    np.testing.assert_array_equal(average_classes(features, np.array([7, 7, 2])), [[0, 5], [2, 0]])
    assert draw_half(9, 0).sum() == 4
    assert draw_half(9, 0).tolist() == draw_half(9, 0).tolist() != draw_half(9, 1).tolist()


def test_too_many_levels_are_one_line() -> None:
    with pytest.raises(InputError, match=r"levels=50: only \d+ can be told apart, with \d+ swaps in all"):
        choose_levels(draw_features(0)[:10], draw_half(10, 0), 50)
