"""The choice of a threshold on the pairs of some classes, and its errors on the pairs of others."""

from dataclasses import dataclass

import numpy as np

from dml.data.table import ImageTable
from dml.evaluation.benchmark_lists import benchmark_lists, has_level_lists
from dml.evaluation.unit_embeddings import UnitEmbeddings
from dml.metrics.pair_counts import LabelledPairs
from dml.metrics.pair_verification import ErrorRates, PairVerification, class_rates, find_equal_error, find_threshold
from dml.ops.errors import InputError, check_whole

Metrics = dict[str, float]

FEWEST_FALSE_MATCHES = 30
"""The number of false matches that a wanted FMR must allow on the pairs of the choice.

From 30 errors on, the true rate is within 30 % of the observed one with 90 % confidence (Doddington's "rule of 30"), if
pairs are independent. Pairs with a common image aren't, so this is the least to ask for.
"""


@dataclass(frozen=True)
class ThresholdSettings:
    """How the threshold is chosen and judged: ``evaluation.threshold``.

    Args:
        fmr: false match rate that is wanted on the validation classes; None takes the threshold at which both error
            rates are equal.
        seed: seed of the draw of the test classes that are held out of the gallery.

    Raises:
        InputError: if the rate isn't between 0 and 1, or the seed is below 0.
    """

    fmr: float | None = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("evaluation.threshold.seed", self.seed, least=0)
        if self.fmr is not None and not 0.0 < self.fmr < 1.0:
            raise InputError(
                f"evaluation.threshold.fmr={self.fmr}: must be above 0 and below 1, or null for equal error rates"
            )


@dataclass(frozen=True)
class Threshold:
    """A chosen threshold.

    Args:
        similarity: similarity from which on two images are judged to be of one class.
        wanted_fmr: false match rate for which it was chosen; None if it was chosen for equal error rates.
        fmr: false match rate that it has on the pairs on which it was chosen.
        fnmr: false non-match rate that it has on them.
    """

    similarity: float
    wanted_fmr: float | None
    fmr: float
    fnmr: float


def make_pairs(embeddings: UnitEmbeddings, table: ImageTable) -> LabelledPairs | None:
    """Make the pairs of an evaluated split: of two images, or of a query and an item of the gallery.

    Args:
        embeddings: embeddings (N, D) of the table's rows.
        table: the rows of one evaluation.

    Returns:
        The pairs with their finest labels; None if they have no cosine similarity, or a list for each level.
    """
    if embeddings.curvature or has_level_lists(table):
        return None
    (part,) = benchmark_lists(table)
    queries, labels = embeddings.take(part.queries).rows, table.labels[:, 0]
    if part.gallery is None:
        return LabelledPairs(queries, labels[part.queries])
    gallery = embeddings.take(part.gallery).rows
    return LabelledPairs(queries, labels[part.queries], gallery, labels[part.gallery], part.excluded)


def has_both_kinds(pairs: LabelledPairs) -> bool:
    """Tell whether there is a pair of one class, and one of different classes."""
    return bool(pairs.counts.positives[0] and pairs.counts.negatives[0])


def choose_threshold(pairs: LabelledPairs, settings: ThresholdSettings) -> tuple[Threshold, ErrorRates]:
    """Choose the smallest threshold with the wanted false match rate, and return it with the ROC curve of the pairs.

    If the wanted rate would allow fewer than `FEWEST_FALSE_MATCHES` pairs of different classes, the rate that allows as
    many takes its place, but none above 0.5.

    Args:
        pairs: pairs of both kinds, see `has_both_kinds`.
        settings: the wanted rate.
    """
    wanted_fmr = settings.fmr
    if wanted_fmr is not None:
        wanted_fmr = max(wanted_fmr, min(0.5, FEWEST_FALSE_MATCHES / int(pairs.counts.negatives[0])))
    rates = PairVerification(pairs, () if wanted_fmr is None else (wanted_fmr,)).rates
    place = find_equal_error(rates) if wanted_fmr is None else find_threshold(rates, wanted_fmr)
    similarity, fmr, fnmr = (float(column[place]) for column in rates)
    return Threshold(similarity, wanted_fmr, fmr, fnmr), rates


def compute_threshold_errors(pairs: LabelledPairs, similarity: float) -> Metrics:
    """Compute the errors of a threshold: over all pairs, and for the median and the worst class.

    Args:
        pairs: pairs of both kinds, of classes on which the threshold wasn't chosen.
        similarity: similarity from which on a pair is judged to be of one class.

    Returns:
        fmr, fnmr, balanced_accuracy (1 minus the mean of both), and both rates of the median and of the worst class.
    """
    counts = pairs.count_by_class(np.array([similarity]))
    fmr = float(counts.negatives.sum() / counts.all_negatives.sum())
    fnmr = float(1.0 - counts.positives.sum() / counts.all_positives.sum())
    metrics = {"fmr": fmr, "fnmr": fnmr, "balanced_accuracy": 1.0 - (fmr + fnmr) / 2.0}
    for name, rates in zip(("fmr", "fnmr"), class_rates(counts), strict=True):
        metrics |= {f"{name}_median_class": float(np.nanmedian(rates)), f"{name}_worst_class": float(np.nanmax(rates))}
    return metrics
