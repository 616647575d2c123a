"""Probabilities of pairs, against an optimum over all pairs, loops, and what a fit must do with odd data."""

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss

from dml.metrics.pairs import HALF, LabeledPairs
from dml.metrics.verification import BINS, EVEN, Calibration, compute_calibration_errors, fit_calibration

Array = npt.NDArray[Any]


def make_pairs(seed: int, size: int = 70, noise: float = 1.0) -> tuple[LabeledPairs, Array, Array]:
    """Pairs of normalized images, their similarities at the middles of the bins, and whether they are of one class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(6, size=size)
    rows = rng.normal(size=(6, 8))[labels] + noise * rng.normal(size=(size, 8))
    unit = torch.nn.functional.normalize(torch.from_numpy(rows), dim=1).float()
    exact = (unit @ unit.T).clamp(-1, 1).double().numpy()
    listed = list(combinations(range(size), 2))
    similarities = np.array([(np.floor(exact[i, j] * HALF) + 0.5) / HALF for i, j in listed])
    return LabeledPairs(unit, labels), similarities, np.array([labels[i] == labels[j] for i, j in listed])


def test_the_fit_is_the_optimum_over_all_pairs() -> None:
    pairs, similarities, is_same = make_pairs(0)
    same, other = is_same.sum(), (~is_same).sum()
    targets = np.where(is_same, (same + 1) / (same + 2), 1 / (other + 2))
    weights = np.where(is_same, 0.5 / same, 0.5 / other)

    def loss(point: Array) -> Any:
        odds = point[0] * similarities + point[1]
        return 1e3 * (weights * (targets * np.logaddexp(0, -odds) + (1 - targets) * np.logaddexp(0, odds))).sum()

    optimum = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 5000})
    fitted = fit_calibration(pairs.counts)
    assert (fitted.slope, fitted.intercept) == pytest.approx(optimum.x, rel=1e-5)
    assert fitted.prior == is_same.mean()


def test_many_pairs_are_fitted_as_logistic_regression_does() -> None:
    """Platt's targets matter little then: the balanced regression without a penalty finds the same function."""
    pairs, similarities, is_same = make_pairs(1, 400)
    regression = LogisticRegression(C=np.inf, class_weight="balanced", solver="newton-cholesky", tol=1e-12)
    regression.fit(10 * similarities[:, None], is_same)
    fitted = fit_calibration(pairs.counts)
    assert fitted.slope == pytest.approx(10 * regression.coef_[0, 0], rel=2e-3)
    assert fitted.intercept == pytest.approx(regression.intercept_[0], rel=2e-3)


@pytest.mark.parametrize("prior", [None, EVEN, 0.03])
def test_errors_are_those_of_a_loop_over_pairs(prior: float | None) -> None:
    pairs, similarities, is_same = make_pairs(2)
    calibration = Calibration(6.0, -2.0, 0.2)
    share = 0.2 if prior is None else prior
    likelihood_ratios = np.exp(6.0 * similarities - 2.0)
    probability = likelihood_ratios * share / (likelihood_ratios * share + 1 - share)
    weights = np.full(len(is_same), 1 / len(is_same))
    if prior is not None:
        weights = np.where(is_same, prior / is_same.sum(), (1 - prior) / (~is_same).sum())
    errors, found_curve = compute_calibration_errors(pairs.counts, calibration, prior)
    assert errors["brier"] == pytest.approx(brier_score_loss(is_same, probability, sample_weight=weights))
    assert errors["log_loss"] == pytest.approx(log_loss(is_same, probability, sample_weight=weights))
    error, curve = 0.0, []
    for number in range(BINS):
        chosen = [i for i, p in enumerate(probability) if number / BINS <= p < (number + 1) / BINS]
        if chosen:
            total = sum(weights[i] for i in chosen)
            mean = sum(weights[i] * probability[i] for i in chosen) / total
            observed = sum(weights[i] for i in chosen if is_same[i]) / total
            error += total * abs(mean - observed)
            curve.append((mean, observed))
    assert errors["ece"] == pytest.approx(error)
    np.testing.assert_allclose(found_curve, np.array(curve).T)


def test_a_prior_is_bayes_theorem() -> None:
    """At the similarity at which both kinds are as likely, the probability is the prior."""
    calibration = Calibration(8.0, -4.0, 0.01)
    assert calibration.probability(0.5) == pytest.approx(0.01)
    np.testing.assert_allclose(calibration.probability([0.5, 0.5], prior=0.3), 0.3)
    odds = calibration.probability(0.8) / (1 - calibration.probability(0.8))
    assert odds == pytest.approx(np.exp(8 * 0.8 - 4) * 0.01 / 0.99)
    assert calibration.probability(1e6) == 1
    assert calibration.probability(-1e6) == 0


def test_kinds_that_do_not_overlap_and_equal_similarities_have_a_finite_fit() -> None:
    separate = fit_calibration(LabeledPairs(torch.eye(4)[[0, 0, 1, 1, 2, 3]], np.array([0, 0, 1, 1, 2, 3])).counts)
    assert np.isfinite(separate.slope)
    assert separate.probability(1.0, EVEN) == pytest.approx(3 / 4, abs=1e-3)  # 2 pairs: (2 + 1) / (2 + 2)
    assert separate.probability(0.0, EVEN) == pytest.approx(1 / 15, abs=1e-3)  # 13 pairs: 1 / (13 + 2)
    point = LabeledPairs(torch.eye(2)[[0, 0, 0, 0]], np.array([0, 0, 1, 1]))
    constant = fit_calibration(point.counts)
    assert constant.slope == 0
    assert constant.probability(1.0, EVEN) == pytest.approx((3 / 4 + 1 / 6) / 2, abs=1e-6)
