"""Compatibility of models: the worked values of the papers' formulas, and loops over all pairs in float64."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.metrics import average_compatibility, average_multimodel_score, mean_pair_distances
from dml.runtime.errors import InputError

NAN = math.nan


def loop_ac(scores: Any) -> float:
    size = len(scores)
    count = sum(scores[i][j] > scores[j][j] for i in range(size) for j in range(i))
    return 2 / (size * (size - 1)) * count


def test_the_worked_values_of_ac_and_am() -> None:
    scores = [[50, NAN, NAN], [48, 60, NAN], [52, 61, 70]]  # 48 < 50 fails
    assert average_compatibility(scores) == pytest.approx(2 / 3, abs=1e-9)
    assert average_multimodel_score(scores) == pytest.approx(56.8333333333, abs=1e-9)
    scores[1][0] = 50  # equal isn't more
    assert average_compatibility(scores) == pytest.approx(2 / 3, abs=1e-9)
    assert average_compatibility(np.full((4, 4), 0.3)) == 0
    assert average_multimodel_score([[0.0]]) == 0  # the release drops a true 0


@given(st.integers(2, 6), st.integers(0, 99))
def test_ac_and_am_are_those_of_a_loop(size: int, seed: int) -> None:
    scores = np.random.default_rng(seed).integers(0, 5, (size, size)) / 4
    assert average_compatibility(scores) == pytest.approx(loop_ac(scores), abs=1e-12)
    triangle = [scores[i][j] for i in range(size) for j in range(i + 1)]
    assert average_multimodel_score(scores) == pytest.approx(sum(triangle) / len(triangle), abs=1e-12)


@pytest.mark.parametrize("scores", [[[1.0, 2.0]], [[1.0, 2.0], [NAN, 1.0]], 1.0])
def test_what_is_no_matrix_of_scores_is_told(scores: Any) -> None:
    with pytest.raises(InputError, match=r"expected \(T, T\), finite on the diagonal and below it"):
        average_compatibility(scores)
    assert math.isnan(average_compatibility([[1.0]]))


def loop_distances(queries: Any, labels: Any, gallery: Any, gallery_labels: Any, excluded: Any) -> tuple[float, float]:
    distances: dict[bool, list[float]] = {True: [], False: []}
    for i, query in enumerate(queries):
        for j, item in enumerate(gallery):
            if j not in excluded[i]:
                distances[bool(labels[i] == gallery_labels[j])].append(1 - sum(query * item))
    same, other = (sum(part) / len(part) if part else NAN for part in (distances[True], distances[False]))
    return same, other


@given(st.integers(0, 99), st.booleans())
def test_mean_distances_are_those_of_a_loop_over_all_pairs(seed: int, is_own: bool) -> None:
    rng = np.random.default_rng(seed)
    queries, gallery = rng.normal(size=(7, 3)), rng.normal(size=(7 if is_own else 9, 3))
    queries, gallery = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (queries, gallery))
    labels = rng.integers(0, 3, 7)
    gallery_labels = labels if is_own else rng.integers(1, 4, 9)
    excluded = np.arange(7)[:, None] if is_own else np.where(rng.random((7, 2)) < 0.5, -1, [[0, 3]])
    expected = loop_distances(queries, labels, gallery, gallery_labels, excluded)
    found = mean_pair_distances(queries, gallery, labels, gallery_labels, excluded)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    without = mean_pair_distances(queries, gallery, labels, gallery_labels)
    np.testing.assert_allclose(without, loop_distances(queries, labels, gallery, gallery_labels, [()] * 7), atol=1e-9)


def test_without_a_pair_of_a_kind_the_mean_is_nan() -> None:
    vectors = np.eye(2)
    same, other = mean_pair_distances(vectors, vectors, np.array([0, 1]), np.array([0, 1]), np.array([[0], [1]]))
    assert math.isnan(same)
    assert other == 1
    same, other = mean_pair_distances(vectors, vectors, np.array([0, 0]), np.array([0, 0]))
    assert same == 0.5
    assert math.isnan(other)
