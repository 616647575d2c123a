"""The choice of a threshold on the pairs of some classes, and its errors on the pairs of others."""

from dataclasses import dataclass

import numpy as np

from dml.data.table import ImageTable
from dml.evaluation.benchmark_lists import benchmark_lists, has_level_lists
from dml.evaluation.threshold.open_set import NearestItems
from dml.evaluation.unit_embeddings import UnitEmbeddings
from dml.metrics.pair_counts import LabelledPairs
from dml.metrics.pair_verification import class_rates, error_rates, find_threshold
from dml.ops.errors import InputError

Metrics = dict[str, float]


@dataclass(frozen=True)
class ThresholdSettings:
    """How the threshold is chosen and judged: ``evaluation.threshold``.

    Args:
        wrong_share: wanted share of wrong "same" among the nearest images of the validation classes.
        fmr: false match rate that is wanted on the validation classes in place of ``wrong_share``; None wants none.

    Raises:
        InputError: if one of them isn't between 0 and 1.
    """

    wrong_share: float = 0.05
    fmr: float | None = None

    def __post_init__(self) -> None:
        for name, share in {"wrong_share": self.wrong_share, "fmr": self.fmr}.items():
            if share is not None and not 0.0 < share < 1.0:
                raise InputError(f"evaluation.threshold.{name}={share}: must be above 0 and below 1")


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


def choose_threshold(pairs: LabelledPairs, nearest: NearestItems, settings: ThresholdSettings) -> float | None:
    """Choose the smallest threshold with the wanted share of wrong "same" among the nearest, or false match rate.

    There is none if no similarity has such a share.

    Args:
        pairs: pairs of both kinds, see `has_both_kinds`.
        nearest: what the queries of the pairs find, see `find_nearest`.
        settings: the wanted share or rate.
    """
    if settings.fmr is None:
        return _find_wrong_share(nearest, settings.wrong_share)
    rates = error_rates(pairs, (settings.fmr,))
    return float(rates.thresholds[find_threshold(rates, settings.fmr)])


def _find_wrong_share(nearest: NearestItems, share: float) -> float | None:
    """Find the smallest similarity from which on at most a share of the nearest items are of another class.

    Fewer than 1 / share items can't show such a share.
    """
    order = np.argsort(-nearest.scores)
    scores, wrong, counts = nearest.scores[order], np.cumsum(~nearest.is_right[order]), np.arange(1, len(order) + 1)
    is_last = np.append(scores[1:] < scores[:-1], True)  # equal similarities reach a threshold together
    fitting = scores[is_last & (wrong <= share * counts) & (share * counts >= 1)]
    return float(fitting[-1]) if len(fitting) else None


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
