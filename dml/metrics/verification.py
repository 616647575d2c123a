"""How well the similarity tells pairs of one class from others: the errors of thresholds, and of probabilities.

A pair is judged to be of one class if its similarity is at least the threshold. The false match rate (FMR) is the share
of pairs of different classes that are judged to be of one, the false non-match rate (FNMR) the share of pairs of one
class that aren't. Probabilities are fitted to and judged by the counts of all pairs, see `dml.metrics.pairs`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.metrics.pairs import EDGES, HALF, ClassCounts, Floats, LabeledPairs, PairCounts

REPORTED_FMRS = (1e-2, 1e-3, 1e-4)
"""The false match rates at which the FNMR is reported."""

CALIBRATION_RANGE = (1e-2, 1e-1)
"""The FMRs between whose thresholds `opis` compares the classes."""

OPIS_STEPS = 101
"""The number of distances at which `opis` compares the classes."""


class ErrorRates(NamedTuple):
    """The ROC curve of a threshold: FMR, from 1 to 0, and FNMR, from 0 to 1, at ascending thresholds (T,).

    Both are NaN if there are no pairs of one of the two kinds.
    """

    thresholds: Floats
    fmr: Floats
    fnmr: Floats

    @property
    def are_known(self) -> bool:
        """Whether there are pairs of both kinds."""
        return not np.isnan([self.fmr[0], self.fnmr[0]]).any()


def error_rates(pairs: LabeledPairs, fmrs: tuple[float, ...] = ()) -> ErrorRates:
    """Compute the ROC curve of all pairs, exactly, to be read at the false match rates ``fmrs``.

    The thresholds are `EDGES`, and all similarities that occur where the FMR is one of ``fmrs``, and where the two
    error rates are equal: there the curve is that of the similarities of all pairs.

    >>> import torch
    >>> rates = error_rates(LabeledPairs(torch.eye(3)[[0, 0, 1, 1]], np.array([0, 0, 1, 1])))
    >>> fnmr_at_fmr(rates, 0.01), equal_error_rate(rates)
    (0.0, 0.0)
    """
    coarse = _rates_of(pairs.counts)
    if not coarse.are_known:
        return coarse
    behind = [_find_crossing(coarse), *(find_threshold(coarse, fmr) for fmr in fmrs)]
    edges = np.unique(np.maximum(np.array(behind) - 1, 0))
    return _rates_of(pairs.refine(edges[edges < len(EDGES) - 1]))


def _rates_of(counts: PairCounts) -> ErrorRates:
    with np.errstate(invalid="ignore"):
        fnmr = 1.0 - counts.positives / counts.positives[0]
        return ErrorRates(counts.similarities, counts.negatives / counts.negatives[0], fnmr)


@dataclass(frozen=True)
class PairVerification:
    """Pairs and their ROC curve, which is computed once for all metrics of the pairs."""

    pairs: LabeledPairs

    @cached_property
    def rates(self) -> ErrorRates:
        """The ROC curve of the pairs."""
        return error_rates(self.pairs, (*REPORTED_FMRS, *CALIBRATION_RANGE))


def find_threshold(rates: ErrorRates, fmr: float) -> int:
    """Return the index of the smallest threshold whose FMR is at most ``fmr``."""
    return int(np.searchsorted(-rates.fmr, -fmr, side="left"))


def fnmr_at_fmr(rates: ErrorRates, fmr: float) -> float:
    """Return the smallest FNMR of a threshold whose FMR is at most ``fmr``; NaN without negatives.

    >>> rates = ErrorRates(np.array([-1.0, 0.2, 0.5, 0.7]), np.array([1.0, 0.5, 0.1, 0.0]), np.array([0, 0.1, 0.4, 1]))
    >>> fnmr_at_fmr(rates, 0.2)
    0.4
    """
    return float("nan") if np.isnan(rates.fmr[0]) else float(rates.fnmr[find_threshold(rates, fmr)])


def equal_error_rate(rates: ErrorRates) -> float:
    """Return the rate at which FMR and FNMR are equal (EER); NaN if the rates are.

    The curve is a straight line between two thresholds, as scikit-learn's ``roc_curve`` is drawn.

    >>> equal_error_rate(ErrorRates(np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.25, 0]), np.array([0, 0.25, 1.0])))
    0.25
    """
    if not rates.are_known:
        return float("nan")
    after = _find_crossing(rates)
    before = after - 1
    gaps = rates.fmr[[before, after]] - rates.fnmr[[before, after]]
    share = gaps[0] / (gaps[0] - gaps[1])
    return float(rates.fmr[before] + share * (rates.fmr[after] - rates.fmr[before]))


def _find_crossing(rates: ErrorRates) -> int:
    """Return the index of the first threshold whose FMR is at most its FNMR; the first of all has FMR 1, FNMR 0."""
    return int(np.argmax(rates.fmr <= rates.fnmr))


def class_rates(counts: ClassCounts) -> tuple[Floats, Floats]:
    """Compute FMR and FNMR of each class at each threshold -> (C, T), (C, T); NaN for a class without such pairs.

    The FMR of a class is of the pairs of an image in the class and one outside, the FNMR of the pairs in it.
    """
    with np.errstate(invalid="ignore"):
        fmr = counts.negatives / counts.all_negatives[:, None]
        return fmr, 1.0 - counts.positives / counts.all_positives[:, None]


def opis(pairs: LabeledPairs, rates: ErrorRates) -> float:
    """Compute the Operating-Point-Inconsistency Score: how much the classes differ in what a threshold does to them.

    OPIS = 1 / C sum_i 1 / (d_max - d_min) integral_{d_min}^{d_max} (U_i(d) - mean_j U_j(d))^2 dd,
    U_i(d) = 2 a_i(d) b_i(d) / (a_i(d) + b_i(d)),
    where a_i = 1 - FNMR_i is the sensitivity and b_i = 1 - FMR_i the specificity of class i, if pairs at a Euclidean
    distance of at most d are judged to be of one class: d^2 = 2 - 2 similarity. d_min and d_max are the distances at
    which the FMR of all classes together is 0.01 and 0.1 (`CALIBRATION_RANGE`). 0 is best, 0.25 is worst. Classes
    without a pair of their own don't count, and without pairs of one of the two kinds it is NaN.

    After Zhang et al., "Threshold-Consistent Margin Loss for Open-World Deep Metric Learning" (arXiv 2307.04047), whose
    definition was not at hand: the formula follows the abstract and descriptions by others. The Euclidean distance, and
    the trapezoidal rule over `OPIS_STEPS` distances, are ours.

    >>> import torch
    >>> pairs = LabeledPairs(torch.eye(3)[[0, 0, 1, 1]], np.array([0, 0, 1, 1]))
    >>> opis(pairs, error_rates(pairs, CALIBRATION_RANGE))
    0.0
    """
    if not rates.are_known:
        return float("nan")
    nearest, farthest = (
        np.sqrt(2.0 - 2.0 * min(float(rates.thresholds[find_threshold(rates, fmr)]), 1.0)) for fmr in CALIBRATION_RANGE
    )
    distances = np.linspace(farthest, nearest, OPIS_STEPS)
    fmr, fnmr = class_rates(pairs.count_by_class(1.0 - distances**2 / 2.0))
    has_both = ~np.isnan(fmr[:, 0]) & ~np.isnan(fnmr[:, 0])
    sensitivity, specificity = 1.0 - fnmr[has_both], 1.0 - fmr[has_both]
    both = sensitivity + specificity
    utility = np.divide(2.0 * sensitivity * specificity, both, out=np.zeros_like(both), where=both > 0)
    deviations = ((utility - utility.mean(axis=0)) ** 2).mean(axis=0)
    # the mean of the trapezoids over equal steps, which is also right if all distances are the same
    return float((deviations[:-1] + deviations[1:]).mean() / 2.0)


BINS = 15
"""The number of equally wide bins of probabilities of the expected calibration error, as Guo et al. have it."""

EVEN = 0.5
"""The prior with which pairs of one class count as much as pairs of different classes."""

ACCURACY = 1e-10
"""The largest derivative of the mean loss at the end of a fit; scores have a standard deviation of 1."""


@dataclass(frozen=True)
class Calibration:
    """A logistic function that turns the similarity of two images into the probability that they are of one class.

    With as many pairs of one class as of different classes, the log odds are ``slope * similarity + intercept``. Other
    proportions add the log odds of their ``prior``: Bayes' theorem, for which the function is a likelihood ratio.

    >>> round(float(Calibration(10.0, -5.0, 0.01).probability(0.5, prior=0.5)), 3)
    0.5

    Args:
        prior: share of pairs of one class among the pairs of the fit.
    """

    slope: float
    intercept: float
    prior: float

    def probability(self, similarity: npt.ArrayLike, prior: float | None = None) -> Floats:
        """Return the probability that two images are of one class; ``prior`` None is the share of pairs of the fit."""
        return _sigmoid(self.log_odds(similarity, prior))

    def log_odds(self, similarity: npt.ArrayLike, prior: float | None = None) -> Floats:
        """Return the logarithm of p / (1 - p), where p is the `probability` of the same arguments."""
        share = self.prior if prior is None else prior
        odds: Floats = self.slope * np.asarray(similarity, dtype=np.float64) + self.intercept
        return odds + float(np.log(share) - np.log1p(-share))


def fit_calibration(counts: PairCounts) -> Calibration:
    """Fit the logistic function with the largest likelihood to pairs of images (Platt scaling).

    Pairs of one class weigh as much as those of different classes, all together, so the number of classes changes the
    prior alone. So that the fit is finite even if the similarities of the two kinds don't overlap, the P pairs of one
    class count as such to (P + 1) / (P + 2), and the N others as of different classes to (N + 1) / (N + 2): these are
    Platt's targets. A pair's similarity is the middle of its bin of `EDGES`, at most 2 ** -17 from its own.

    After Platt, "Probabilistic Outputs for Support Vector Machines and Comparisons to Regularized Likelihood Methods"
    (Advances in Large Margin Classifiers, 1999). The equal weights are ours.
    """
    similarities, positives, negatives = _list_bins(counts)
    sizes = np.array([positives.sum(), negatives.sum()])
    targets = (sizes + 1.0) / (sizes + 2.0)
    shares = np.stack([positives / sizes[0], negatives / sizes[1]]) / 2.0
    to_one = targets[0] * shares[0] + (1.0 - targets[1]) * shares[1]
    slope, intercept = _fit_logistic(similarities, shares.sum(axis=0), to_one)
    return Calibration(slope, intercept, prior=float(sizes[0] / sizes.sum()))


def compute_calibration_errors(
    counts: PairCounts, calibration: Calibration, prior: float | None = None
) -> tuple[dict[str, float], Floats]:
    """Compute the errors of probabilities, of pairs of classes on which the function wasn't fitted; 0 is best of each.

    ``ece`` is the expected calibration error: the difference between the mean probability and the share of pairs of one
    class in a bin of probabilities, as a mean over `BINS` bins that counts each pair (Guo et al., "On Calibration of
    Modern Neural Networks", ICML 2017, eq. 3). ``brier`` is the mean squared difference between the probability and 1
    for a pair of one class, or 0 for another one, and ``log_loss`` the mean negative natural logarithm of the
    probability of what the pair is. Beside them stands the reliability curve (2, P): the mean probability, and the
    share of pairs of one class, of each bin with pairs.

    Args:
        prior: share of pairs of one class that the pairs are weighted to; None counts each pair once.
    """
    similarities, positives, negatives = _list_bins(counts)
    sizes = np.array([positives.sum(), negatives.sum()])
    shares = sizes / sizes.sum() if prior is None else np.array([prior, 1.0 - prior])
    same, other = shares[0] * positives / sizes[0], shares[1] * negatives / sizes[1]
    log_odds = calibration.log_odds(similarities, prior)
    probability = _sigmoid(log_odds)
    bins = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    weight, expected, observed = (
        np.bincount(bins, values, minlength=BINS) for values in (same + other, (same + other) * probability, same)
    )
    has_pairs = weight > 0
    errors = {
        "ece": float(np.abs(expected - observed).sum()),
        "brier": float(same @ (1.0 - probability) ** 2 + other @ probability**2),
        "log_loss": float(same @ np.logaddexp(0.0, -log_odds) + other @ np.logaddexp(0.0, log_odds)),
    }
    return errors, np.stack([expected[has_pairs], observed[has_pairs]]) / weight[has_pairs]


def _fit_logistic(similarities: Floats, weights: Floats, to_one: Floats) -> tuple[float, float]:
    """Fit a logistic function of similarities (B,) by the trust region method of Newton -> slope and intercept."""
    from scipy.optimize import minimize  # late: it takes half a second, which a start waits for

    if len(similarities) == 1:  # nothing tells the pairs apart
        return 0.0, float(np.log(to_one[0]) - np.log1p(-to_one[0]))
    middle = float(weights @ similarities)
    scale = float(np.sqrt(weights @ (similarities - middle) ** 2))
    inputs = np.stack([(similarities - middle) / scale, np.ones(len(similarities))])

    def loss(point: Floats) -> tuple[float, Any]:
        log_odds = point @ inputs
        value = float(weights @ np.logaddexp(0.0, log_odds) - to_one @ log_odds)
        return value, inputs @ (weights * _sigmoid(log_odds) - to_one)

    def hessian(point: Floats) -> Any:
        probability = _sigmoid(point @ inputs)
        return (inputs * (weights * probability * (1.0 - probability))) @ inputs.T

    optimum = minimize(loss, np.zeros(2), jac=True, hess=hessian, method="trust-exact", options={"gtol": ACCURACY})
    slope = float(optimum.x[0]) / scale
    return slope, float(optimum.x[1]) - slope * middle


def _list_bins(counts: PairCounts) -> tuple[Floats, Floats, Floats]:
    """Return the similarity in the middle of each bin with pairs, and its numbers of pairs of both kinds. -> 3 (B,)"""
    positives, negatives = (-np.diff(column).astype(np.float64) for column in (counts.positives, counts.negatives))
    has_pairs = positives + negatives > 0
    middles = np.minimum(counts.similarities[:-1] + 0.5 / HALF, 1.0)
    return middles[has_pairs], positives[has_pairs], negatives[has_pairs]


def _sigmoid(log_odds: Floats) -> Floats:
    """Return 1 / (1 + exp(-log_odds)), without overflow."""
    return np.exp(-np.logaddexp(0.0, -log_odds))
