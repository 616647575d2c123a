"""Thresholds on the similarity: from which on two images are of one class, or the nearest is; and probabilities."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dml.data.table import ImageTable
from dml.evaluation.items import Items, benchmark_lists, pair_items
from dml.evaluation.metric import METRICS, Kind
from dml.evaluation.names import CALIBRATION_PREFIX, THRESHOLD_PREFIX, format_percent
from dml.metrics.pairs import BLOCK, Floats, LabeledPairs, list_excluded
from dml.metrics.verification import (
    EVEN,
    Calibration,
    PairVerification,
    class_rates,
    compute_calibration_errors,
    error_rates,
    find_threshold,
    fit_calibration,
)
from dml.ops.precision import without_tf32
from dml.retrieval.rows import UnitEmbeddings

LOWEST_FMR, POINTS = 1e-6, 121
"""The lowest false match rate of a stored curve, and its number of points, 20 in each power of ten."""

VALIDATED = ("fmr", "fnmr", "known_accepted", "wrong_share")
"""The errors on the validation classes that are stored, too."""

Metrics = dict[str, float]


def find_calibration(metrics: Mapping[str, float]) -> Calibration | None:
    """Find the function in metrics whose names lack `THRESHOLD_PREFIX`; None if they are of a test that fitted none."""
    names = {field.name: f"{CALIBRATION_PREFIX}{field.name}" for field in fields(Calibration)}
    if not metrics.keys() >= {*names.values()} or not 0.0 < metrics[names["prior"]] < 1.0:
        return None  # a saved model may be somebody else's
    return Calibration(**{field: float(metrics[name]) for field, name in names.items()})


def find_nearest_threshold(metrics: Mapping[str, float]) -> float | None:
    """Find the threshold of the nearest images, or of two images for both, in metrics without `THRESHOLD_PREFIX`."""
    has_both = {"wanted_fmr", "wanted_wrong_share"} <= metrics.keys()
    return metrics.get("nearest_similarity" if has_both else "similarity")


def describe_choice(metrics: Mapping[str, float], *, of_nearest: bool = False) -> str:
    """Describe how the threshold of two images or of the nearest ones was chosen; "" if there is none."""
    if "wanted_fmr" in metrics and not (of_nearest and "wanted_wrong_share" in metrics):
        return f"for a false match rate of {format_percent(metrics['wanted_fmr'])} %"
    if "wanted_wrong_share" in metrics:
        return f'where the share of wrong "same" among the nearest is {format_percent(metrics["wanted_wrong_share"])} %'
    return ""


class NearestItems(NamedTuple):
    """The nearest item that each search finds."""

    scores: npt.NDArray[np.float32]
    is_known: npt.NDArray[np.bool_]  # (S,) among all items, or those of other classes alone
    is_right: npt.NDArray[np.bool_]  # (S,) whether the item is of the query's class


def find_nearest(pairs: LabeledPairs) -> NearestItems:
    """Find each query's nearest item that it doesn't exclude twice: among all, and among those of other classes."""
    items, item_labels, excluded = pairs.gallery, pairs.gallery_labels, pairs.excluded
    if items is None or item_labels is None:
        items, item_labels, excluded = pairs.embeddings, pairs.labels, np.arange(len(pairs.labels))[:, None]
    scores, rights = [], []
    for start in range(0, len(pairs.labels), size := max(1, BLOCK // len(items))):
        rows = slice(start, start + size)
        with without_tf32():
            similarities = pairs.embeddings[rows] @ items.T
        if excluded is not None:
            similarities[list_excluded(excluded[rows])] = -torch.inf
        is_same = torch.from_numpy(pairs.labels[rows, None] == item_labels).to(items.device)
        best = similarities.max(dim=1)
        best_other = similarities.masked_fill_(is_same, -torch.inf).max(dim=1)
        scores.append(torch.stack([best.values, best_other.values]).cpu().numpy())
        rights.append(is_same.gather(1, best.indices[:, None])[:, 0].cpu().numpy())
    best_scores, is_right = np.concatenate(scores, axis=1), np.concatenate(rights)
    is_known, has_found = np.broadcast_to([[True], [False]], best_scores.shape), np.isfinite(best_scores)
    return NearestItems(best_scores[has_found], is_known[has_found], (is_known & is_right)[has_found])


def judge_nearest(nearest: NearestItems, threshold: float | None) -> Metrics:
    """Compute how well the nearest item's similarity tells queries of known classes from others.

    ``unknown_auroc`` is the area under the ROC curve of the similarity, 0.5 by chance. With a threshold,
    ``known_accepted`` and ``unknown_accepted`` are the shares of searches whose nearest item has at least that
    similarity, ``known_identified`` the share of searches among all items that are accepted and find an item of the
    query's class (detection and identification), and ``wrong_share`` the share of these accepted searches that find an
    item of another class, 0 without any. There is no metric of searches of one kind alone.
    """
    scores, is_known, is_right = nearest
    if is_known.all() or not is_known.any():
        return {}
    from sklearn.metrics import roc_auc_score  # late: it takes half a second, which a start waits for

    metrics = {"unknown_auroc": float(roc_auc_score(is_known, scores))}
    if threshold is not None:
        is_accepted = scores >= np.float32(threshold)
        is_same = is_accepted & is_known
        metrics |= {
            "known_accepted": float(is_accepted[is_known].mean()),
            "known_identified": float((is_accepted & is_right)[is_known].mean()),
            "unknown_accepted": float(is_accepted[~is_known].mean()),
            "wrong_share": float((~is_right[is_same]).mean()) if is_same.any() else 0.0,
        }
    return metrics


@dataclass(frozen=True)
class ThresholdSettings:
    """How the thresholds are chosen and judged: ``evaluation.threshold``."""

    wrong_share: float = 0.05  # wanted share of wrong "same" among the nearest images of the validation classes
    fmr: float | None = 0.01  # wanted false match rate of two images of these; None judges them as the nearest ones


def make_pairs(embeddings: UnitEmbeddings, table: ImageTable) -> LabeledPairs | None:
    """Make the pairs, by finest labels, of a split or of query and gallery; None with a list for each level."""
    if table.has_level_lists:
        return None
    (part,) = benchmark_lists(table)
    return pair_items(*part.split_items(Items(embeddings.rows, table.labels)), part.excluded)


def choose_pair_threshold(pairs: LabeledPairs, fmr: float) -> float:
    """Choose the smallest threshold with a false match rate; there must be pairs of both kinds."""
    rates = error_rates(pairs, (fmr,))
    return float(rates.thresholds[find_threshold(rates, fmr)])


def choose_nearest_threshold(nearest: NearestItems, share: float) -> float | None:
    """Choose the smallest similarity from which on at most a share of the nearest items are wrong; None if none has."""
    order = np.argsort(-nearest.scores)
    scores, wrong, counts = nearest.scores[order], np.cumsum(~nearest.is_right[order]), np.arange(1, len(order) + 1)
    is_last = np.append(scores[1:] < scores[:-1], True)  # equal similarities reach a threshold together
    fitting = scores[is_last & (wrong <= share * counts) & (share * counts >= 1)]
    return float(fitting[-1]) if len(fitting) else None


def compute_threshold_errors(pairs: LabeledPairs, similarity: float) -> Metrics:
    """Compute the errors of a threshold: over all pairs, and for the median and the worst class.

    There must be pairs of both kinds, of classes on which the threshold wasn't chosen.
    """
    counts = pairs.count_by_class(np.array([similarity]))
    fmr = float(counts.negatives.sum() / counts.all_negatives.sum())
    fnmr = float(1.0 - counts.positives.sum() / counts.all_positives.sum())
    metrics = {"fmr": fmr, "fnmr": fnmr, "balanced_accuracy": 1.0 - (fmr + fnmr) / 2.0}
    for name, rates in zip(("fmr", "fnmr"), class_rates(counts), strict=True):
        metrics |= {f"{name}_median_class": float(np.nanmedian(rates)), f"{name}_worst_class": float(np.nanmax(rates))}
    return metrics


def evaluate_threshold(
    split: str, tested: LabeledPairs | None, validated: LabeledPairs | None, settings: ThresholdSettings
) -> tuple[Metrics, dict[str, Floats]]:
    """Choose thresholds and fit probabilities on the validation classes, and judge all on those of a tested split.

    If that is "val", nothing is judged. Pairs are None if there is no such split, or a list for each level. Returns
    {name in metrics.json: value}, and {name of a split: (2, P) FMR and FNMR}, the ROC curve of each.
    """
    if tested is None or not (verification := PairVerification(tested)).rates.are_known:
        return {}, {}
    curves = {split: thin_curve(verification)}
    metrics = {metric.name: float(metric.function(verification)) for metric in METRICS if metric.kind == Kind.PAIRS}
    similarity = nearest_similarity = None
    if validated is not None and (validation := PairVerification(validated)).rates.are_known:
        curves["val"] = thin_curve(validation)
        nearest = find_nearest(validated)
        similarity = nearest_similarity = choose_nearest_threshold(nearest, settings.wrong_share)
        metrics["wanted_wrong_share"] = settings.wrong_share
        if settings.fmr is not None:
            similarity = choose_pair_threshold(validated, settings.fmr)
            metrics["wanted_fmr"] = settings.fmr
        chosen = {"similarity": similarity, "nearest_similarity": nearest_similarity}
        metrics |= {name: value for name, value in chosen.items() if value is not None}
        errors = _judge(validated, nearest, similarity, nearest_similarity)
        metrics |= {f"val_{name}": errors[name] for name in VALIDATED if name in errors}
        calibration = fit_calibration(validated.counts)
        metrics |= {f"{CALIBRATION_PREFIX}{name}": value for name, value in asdict(calibration).items()}
        for suffix, prior in (("", None), ("_balanced", EVEN)) if split != "val" else ():
            errors = compute_calibration_errors(tested.counts, calibration, prior)[0]
            metrics |= {f"{name}{suffix}": value for name, value in errors.items()}
    if split != "val":
        metrics |= _judge(tested, find_nearest(tested), similarity, nearest_similarity)
    return {f"{THRESHOLD_PREFIX}{name}": value for name, value in metrics.items()}, curves


def _judge(
    pairs: LabeledPairs, nearest: NearestItems, similarity: float | None, nearest_similarity: float | None
) -> Metrics:
    errors = {} if similarity is None else compute_threshold_errors(pairs, similarity)
    return errors | judge_nearest(nearest, nearest_similarity)


def thin_curve(verification: PairVerification) -> Floats:
    """Return the smallest FNMR at false match rates from 1 down to that of a single pair. -> (2, P) FMR and FNMR"""
    rates, negatives = verification.rates, int(verification.pairs.counts.negatives[0])
    fmrs = np.geomspace(1.0, LOWEST_FMR, POINTS)
    fmrs = fmrs[fmrs >= max(LOWEST_FMR, 1.0 / negatives) * (1 - 1e-9)]
    return np.stack([fmrs, rates.fnmr[np.searchsorted(-rates.fmr, -fmrs * (1 + 1e-9), side="left")]])
