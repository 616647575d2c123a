"""The evaluation of a threshold and of probabilities: chosen on one split, judged on another, with their curves."""

import numpy as np

from dml.evaluation.metric import Kind
from dml.evaluation.metric_config import METRICS
from dml.evaluation.names import THRESHOLD_PREFIX
from dml.evaluation.threshold.open_set import find_nearest, judge_nearest
from dml.evaluation.threshold.stored_calibration import RELIABILITY, RELIABILITY_BALANCED, name_values
from dml.evaluation.threshold.threshold_choice import (
    ThresholdSettings,
    choose_threshold,
    compute_threshold_errors,
    has_both_kinds,
)
from dml.metrics.pair_calibration import EVEN, Calibration, compute_calibration_errors, fit_calibration
from dml.metrics.pair_counts import LabelledPairs
from dml.metrics.pair_verification import ErrorRates, Floats, PairVerification

LOWEST_FMR = 1e-6
"""The lowest false match rate of a stored curve."""

POINTS = 121
"""The number of points of a stored curve; 20 of them are in each power of ten."""


def evaluate_threshold(
    split: str, tested: LabelledPairs | None, validated: LabelledPairs | None, settings: ThresholdSettings
) -> tuple[dict[str, float], dict[str, Floats]]:
    """Choose a threshold and fit probabilities on the validation classes, and judge both on those of a tested split.

    Args:
        split: name of the tested split; if it is "val", nothing is judged.
        tested: pairs of the tested split; None if they can't be compared by cosine similarity.
        validated: pairs of the validation split; None if there is none.
        settings: how the threshold is chosen.

    Returns:
        {name in metrics.json: value}, without those of threshold and probabilities if there is no validation split with
        pairs of both kinds; and {name of a split: (2, P) FMR and FNMR}, the ROC curve of each split, with the
        reliability curves of the tested split, (2, P) mean probability and share of pairs of one class.
    """
    if tested is None or not has_both_kinds(tested):
        return {}, {}
    verification = PairVerification(tested)
    curves = {split: thin_curve(verification.rates, tested)}
    metrics = {metric.name: float(metric.function(verification)) for metric in METRICS if metric.kind == Kind.PAIRS}
    similarity = None
    if validated is not None and has_both_kinds(validated):
        nearest = find_nearest(validated)
        similarity = choose_threshold(validated, nearest, settings)
        metrics |= (
            {"wanted_wrong_share": settings.wrong_share} if settings.fmr is None else {"wanted_fmr": settings.fmr}
        )
        curves |= {"val": thin_curve(PairVerification(validated).rates, validated)}
        if similarity is not None:
            errors = compute_threshold_errors(validated, similarity) | judge_nearest(nearest, similarity)
            metrics |= {"similarity": similarity} | {
                f"val_{name}": errors[name] for name in ("fmr", "fnmr", "known_accepted", "wrong_share")
            }
        calibration = fit_calibration(validated.counts)
        metrics |= name_values(calibration)
        if split != "val":
            calibration_errors, reliability_curves = _evaluate_calibration(tested, calibration)
            metrics, curves = metrics | calibration_errors, curves | reliability_curves
    if split != "val":
        metrics |= {} if similarity is None else compute_threshold_errors(tested, similarity)
        metrics |= judge_nearest(find_nearest(tested), similarity)
    return {f"{THRESHOLD_PREFIX}{name}": value for name, value in metrics.items()}, curves


def thin_curve(rates: ErrorRates, pairs: LabelledPairs) -> Floats:
    """Return the smallest FNMR at false match rates from 1 down to that of a single pair. -> (2, P) FMR and FNMR"""
    lowest = max(LOWEST_FMR, 1.0 / int(pairs.counts.negatives[0]))
    fmrs = np.geomspace(1.0, LOWEST_FMR, POINTS)
    fmrs = fmrs[fmrs >= lowest * (1 - 1e-9)]
    places = np.searchsorted(-rates.fmr, -fmrs * (1 + 1e-9), side="left")
    return np.stack([fmrs, rates.fnmr[places]])


def _evaluate_calibration(
    tested: LabelledPairs, calibration: Calibration
) -> tuple[dict[str, float], dict[str, Floats]]:
    """Return the errors of probabilities and their reliability curves: as they are, and with both kinds alike."""
    metrics: dict[str, float] = {}
    curves: dict[str, Floats] = {}
    for name, prior, suffix in ((RELIABILITY, None, ""), (RELIABILITY_BALANCED, EVEN, "_balanced")):
        errors = compute_calibration_errors(tested.counts, calibration, prior)
        metrics |= {f"ece{suffix}": errors.ece, f"brier{suffix}": errors.brier, f"log_loss{suffix}": errors.log_loss}
        curves[name] = errors.curve
    return metrics, curves
