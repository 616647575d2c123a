"""The probability that two images are of one class, given their similarity, and how right such probabilities are.

It is exact for all pairs, however many: what is fitted and judged are their counts, see `dml.metrics.pair_counts`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.metrics.pair_counts import HALF, PairCounts

Floats = npt.NDArray[np.float64]

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
        slope: how much the log odds rise with the similarity.
        intercept: log odds at a similarity of 0.
        prior: share of pairs of one class among the pairs of the fit.
    """

    slope: float
    intercept: float
    prior: float

    def probability(self, similarity: npt.ArrayLike, prior: float | None = None) -> Floats:
        """Return the probability that two images are of one class.

        Args:
            similarity: (...) similarities of pairs.
            prior: share of pairs of one class among all that are compared; None for that of the pairs of the fit.
        """
        return _sigmoid(self.log_odds(similarity, prior))

    def log_odds(self, similarity: npt.ArrayLike, prior: float | None = None) -> Floats:
        """Return the logarithm of p / (1 - p), where p is the `probability` of the same arguments."""
        share = self.prior if prior is None else prior
        odds: Floats = self.slope * np.asarray(similarity, dtype=np.float64) + self.intercept
        return odds + float(np.log(share) - np.log1p(-share))


class CalibrationErrors(NamedTuple):
    """How far probabilities are from what they stand for; 0 is best of each.

    Args:
        ece: expected calibration error: the difference between the mean probability and the share of pairs of one
            class in a bin of probabilities, as a mean over `BINS` bins that counts each pair.
        brier: mean squared difference between the probability and 1 for a pair of one class, or 0 for another one.
        log_loss: mean negative logarithm, to base e, of the probability of what the pair is.
        curve: (2, P) mean probability, and share of pairs of one class, of each bin with pairs: the reliability curve.
    """

    ece: float
    brier: float
    log_loss: float
    curve: Floats


def fit_calibration(counts: PairCounts) -> Calibration:
    """Fit the logistic function with the largest likelihood to pairs of images (Platt scaling).

    Pairs of one class weigh as much as those of different classes, all together, so the number of classes changes the
    prior alone. So that the fit is finite even if the similarities of the two kinds don't overlap, the P pairs of one
    class count as such to (P + 1) / (P + 2), and the N others as of different classes to (N + 1) / (N + 2): these are
    Platt's targets.

    After Platt, "Probabilistic Outputs for Support Vector Machines and Comparisons to Regularized Likelihood Methods"
    (Advances in Large Margin Classifiers, 1999). The equal weights are ours.

    Args:
        counts: pairs at `dml.metrics.pair_counts.EDGES`, some of each kind; a pair's similarity is the middle of its
            bin, at most 2 ** -17 from its own.
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
) -> CalibrationErrors:
    """Compute the errors of probabilities.

    The expected calibration error is that of Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017, eq. 3),
    of the probability of one class, as Naeini et al. (AAAI 2015) have it for two classes.

    Args:
        counts: pairs of both kinds, of classes on which the function wasn't fitted.
        calibration: function that gives the probabilities, as fitted on other classes.
        prior: share of pairs of one class with which probabilities are computed, and to which pairs are weighted; None
            takes the probabilities of `Calibration.probability` as they are, and each pair counts once.
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
    return CalibrationErrors(
        ece=float(np.abs(expected - observed).sum()),
        brier=float(same @ (1.0 - probability) ** 2 + other @ probability**2),
        log_loss=float(same @ np.logaddexp(0.0, -log_odds) + other @ np.logaddexp(0.0, log_odds)),
        curve=np.stack([expected[has_pairs], observed[has_pairs]]) / weight[has_pairs],
    )


def _fit_logistic(similarities: Floats, weights: Floats, to_one: Floats) -> tuple[float, float]:
    """Fit a logistic function of some similarities by the trust region method of Newton -> slope and intercept.

    Args:
        similarities: (B,) similarity in the middle of each bin of pairs.
        weights: (B,) weight of the pairs in each bin; all sum to 1.
        to_one: (B,) part of each weight that is of pairs of one class.
    """
    from scipy.optimize import minimize  # late: it takes half a second, which a start waits for

    if len(similarities) == 1:  # nothing tells the pairs apart
        return 0.0, float(np.log(to_one[0]) - np.log1p(-to_one[0]))
    middle = float(weights @ similarities)
    scale = float(np.sqrt(weights @ (similarities - middle) ** 2))
    inputs = np.stack([(similarities - middle) / scale, np.ones(len(similarities))])

    def loss(point: Floats) -> float:
        log_odds = point @ inputs
        return float(weights @ np.logaddexp(0.0, log_odds) - to_one @ log_odds)

    def gradient(point: Floats) -> Any:
        return inputs @ (weights * _sigmoid(point @ inputs) - to_one)

    def hessian(point: Floats) -> Any:
        probability = _sigmoid(point @ inputs)
        return (inputs * (weights * probability * (1.0 - probability))) @ inputs.T

    optimum = minimize(loss, np.zeros(2), jac=gradient, hess=hessian, method="trust-exact", options={"gtol": ACCURACY})
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
