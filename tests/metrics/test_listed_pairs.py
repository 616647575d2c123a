"""Metrics of listed pairs, against loops and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from dml.metrics.verification import verify_pairs


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 2))
def test_each_metric_is_its_definition(seed: int, digits: int) -> None:
    rng = np.random.default_rng(seed)
    is_same = rng.permutation(np.arange(40) < rng.integers(5, 36))
    similarities = np.round(rng.normal(size=40) + is_same, digits)  # with ties
    folds = rng.permutation(np.arange(40) % 5)
    metrics = verify_pairs(similarities, is_same, folds)
    thresholds = [*np.unique(similarities), np.inf]
    fmr = [np.mean(similarities[~is_same] >= t) for t in thresholds]
    fnmr = [np.mean(similarities[is_same] < t) for t in thresholds]
    for limit, name in ((0.01, "1e-2"), (0.001, "1e-3"), (0.0001, "1e-4")):
        assert metrics[f"fnmr@{name}"] == pytest.approx(min(b for a, b in zip(fmr, fnmr, strict=True) if a <= limit))
    assert metrics["auc"] == pytest.approx(roc_auc_score(is_same, similarities))
    accuracies = []
    for fold in range(5):
        known = folds != fold
        rights = {
            t: sum((similarities[known] >= t) == is_same[known]) for t in [*np.unique(similarities[known]), np.inf]
        }
        best = max(t for t, right in rights.items() if right == max(rights.values()))
        accuracies.append(np.mean((similarities[~known] >= best) == is_same[~known]))
    assert metrics["accuracy"] == pytest.approx(np.mean(accuracies))


def test_separate_pairs_have_no_errors() -> None:
    same = np.arange(20) % 2 == 0
    metrics = verify_pairs(np.where(same, 0.9, 0.1), same, np.arange(20) % 10)
    assert metrics == {"auc": 1.0, "fnmr@1e-2": 0.0, "fnmr@1e-3": 0.0, "fnmr@1e-4": 0.0, "accuracy": 1.0}
