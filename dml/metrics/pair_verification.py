"""How well a threshold on the similarity tells pairs of one class from pairs of different classes.

A pair is judged to be of one class if its similarity is at least the threshold. The false match rate (FMR) is the share
of pairs of different classes that are judged to be of one, the false non-match rate (FNMR) the share of pairs of one
class that aren't.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dml.metrics.pair_counts import EDGES, ClassCounts, LabelledPairs, PairCounts

Floats = npt.NDArray[np.float64]

REPORTED_FMRS = (1e-2, 1e-3, 1e-4)
"""The false match rates at which the FNMR is reported."""

CALIBRATION_RANGE = (1e-2, 1e-1)
"""The FMRs between whose thresholds `opis` compares the classes."""

OPIS_STEPS = 101
"""The number of distances at which `opis` compares the classes."""


class ErrorRates(NamedTuple):
    """The ROC curve of a threshold: both error rates at many thresholds.

    Args:
        thresholds: (T,) ascending similarities.
        fmr: (T,) false match rate at each threshold, from 1 to 0.
        fnmr: (T,) false non-match rate at each threshold, from 0 to 1.
    """

    thresholds: Floats
    fmr: Floats
    fnmr: Floats

    @classmethod
    def from_counts(cls, counts: PairCounts) -> "ErrorRates":
        """Compute the rates at the similarities of some counts, the first of which are of all pairs.

        The rates are NaN if there is no pair of different classes, or none of one class.
        """
        with np.errstate(invalid="ignore"):
            fmr = counts.negatives / counts.negatives[0]
            return cls(counts.similarities, fmr, 1.0 - counts.positives / counts.positives[0])


def error_rates(pairs: LabelledPairs, fmrs: tuple[float, ...] = ()) -> ErrorRates:
    """Compute the ROC curve of all pairs, exactly.

    The thresholds are the similarities in `dml.metrics.pair_counts.EDGES`. Where a threshold of one of some FMRs is
    looked for, and where the two error rates are equal, they are all similarities that occur. So these thresholds are
    those that a curve with the similarities of all pairs has.

    >>> import torch
    >>> rates = error_rates(LabelledPairs(torch.eye(3)[[0, 0, 1, 1]], np.array([0, 0, 1, 1])))
    >>> fnmr_at_fmr(rates, 0.01), equal_error_rate(rates)
    (0.0, 0.0)

    Args:
        pairs: pairs of images.
        fmrs: false match rates at which the curve will be read.
    """
    coarse = ErrorRates.from_counts(pairs.counts)
    if np.isnan(coarse.fmr).any() or np.isnan(coarse.fnmr).any():
        return coarse
    behind = {find_threshold(coarse, fmr) for fmr in fmrs} | {_find_crossing(coarse)}
    edges = np.array(sorted({max(index - 1, 0) for index in behind}))
    return ErrorRates.from_counts(pairs.refine(edges[edges < len(EDGES) - 1]))


@dataclass(frozen=True)
class PairVerification:
    """Pairs and their ROC curve, which is computed once for all metrics of the pairs.

    Args:
        pairs: pairs of images.
    """

    pairs: LabelledPairs

    @cached_property
    def rates(self) -> ErrorRates:
        """The ROC curve of the pairs."""
        return error_rates(self.pairs, (*REPORTED_FMRS, *CALIBRATION_RANGE))


def find_threshold(rates: ErrorRates, fmr: float) -> int:
    """Return the index of the smallest threshold whose FMR is at most ``fmr``."""
    return int(np.searchsorted(-rates.fmr, -fmr, side="left"))


def fnmr_at_fmr(rates: ErrorRates, fmr: float) -> float:
    """Return the smallest FNMR of a threshold whose FMR is at most ``fmr``; NaN if the rates are.

    >>> rates = ErrorRates(np.array([-1.0, 0.2, 0.5, 0.7]), np.array([1.0, 0.5, 0.1, 0.0]), np.array([0, 0.1, 0.4, 1]))
    >>> fnmr_at_fmr(rates, 0.2)
    0.4
    """
    return float("nan") if np.isnan(rates.fmr).any() else float(rates.fnmr[find_threshold(rates, fmr)])


def equal_error_rate(rates: ErrorRates) -> float:
    """Return the rate at which FMR and FNMR are equal (EER); NaN if the rates are.

    The curve is a straight line between two thresholds, as scikit-learn's ``roc_curve`` is drawn.

    >>> equal_error_rate(ErrorRates(np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.25, 0]), np.array([0, 0.25, 1.0])))
    0.25
    """
    if np.isnan(rates.fmr).any() or np.isnan(rates.fnmr).any():
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


def opis(pairs: LabelledPairs, rates: ErrorRates) -> float:
    """Compute the Operating-Point-Inconsistency Score: how much the classes differ in what a threshold does to them.

    OPIS = 1 / C sum_i 1 / (d_max - d_min) integral_{d_min}^{d_max} (U_i(d) - mean_j U_j(d))^2 dd,
    U_i(d) = 2 a_i(d) b_i(d) / (a_i(d) + b_i(d)),
    where a_i = 1 - FNMR_i is the sensitivity and b_i = 1 - FMR_i the specificity of class i, if pairs at a Euclidean
    distance of at most d are judged to be of one class. The distance of unit embeddings is d^2 = 2 - 2 similarity.
    d_min and d_max are the distances at which the FMR of all classes together is 0.01 and 0.1 (`CALIBRATION_RANGE`).
    0 is best: one threshold then suits all classes alike. Classes without a pair of their own don't count.

    After Zhang et al., "Threshold-Consistent Margin Loss for Open-World Deep Metric Learning" (arXiv 2307.04047). The
    text of its definition was not at hand: the formula follows the abstract (a variance of the operating
    characteristics across classes) and descriptions of it by others. The choice of the Euclidean distance, and the
    trapezoidal rule over `OPIS_STEPS` distances, are ours.

    >>> import torch
    >>> pairs = LabelledPairs(torch.eye(3)[[0, 0, 1, 1]], np.array([0, 0, 1, 1]))
    >>> opis(pairs, error_rates(pairs, CALIBRATION_RANGE))
    0.0

    Args:
        pairs: pairs of images.
        rates: `error_rates` of the pairs, at the FMRs of `CALIBRATION_RANGE`.

    Returns:
        The value, between 0 and 0.25; NaN if there is no pair of different classes, or none of one class.
    """
    if np.isnan(rates.fmr).any() or np.isnan(rates.fnmr).any():
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
