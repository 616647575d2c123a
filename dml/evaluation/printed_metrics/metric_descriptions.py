"""What tables, reports and comparisons need to know of a metric: its label, its direction and its unit."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES, Metric
from dml.evaluation.metric_config import METRICS_BY_NAME
from dml.evaluation.printed_metrics.metric_names import MetricName


class MetricDescription(NamedTuple):
    """A metric without its function, as a finished run names it.

    Args:
        name: name of the metric in ``evaluation.metrics``, such as "recall".
        label: label of the metric in tables, such as "R".
        higher_is_better: whether a larger value is the better one.
        shown_in_percent: whether tables show 0.5 as 50.0.
    """

    name: str
    label: str
    higher_is_better: bool = True
    shown_in_percent: bool = True


THRESHOLD_PREFIX = "threshold/"
"""The beginning of the names in metrics.json of a threshold and its errors, see `dml.evaluation.threshold`."""

CALIBRATION_PREFIX = "calibration_"
"""The beginning, behind `THRESHOLD_PREFIX`, of the names of the values of a `dml.metrics.pair_calibration`."""

THRESHOLD_METRICS = {
    metric.name: metric
    for metric in (
        MetricDescription("similarity", "threshold", shown_in_percent=False),
        MetricDescription("val_fmr", "FMR (val)", higher_is_better=False),
        MetricDescription("val_fnmr", "FNMR (val)", higher_is_better=False),
        MetricDescription("wanted_fmr", "wanted FMR", higher_is_better=False),
        MetricDescription("wanted_wrong_share", 'wanted wrong "same"', higher_is_better=False),
        MetricDescription("val_known_accepted", "known queries accepted (val)"),
        MetricDescription("val_wrong_share", 'wrong "same" (val)', higher_is_better=False),
        MetricDescription("wrong_share", 'wrong "same"', higher_is_better=False),
        MetricDescription("fmr", "FMR", higher_is_better=False),
        MetricDescription("fnmr", "FNMR", higher_is_better=False),
        MetricDescription("balanced_accuracy", "balanced accuracy"),
        MetricDescription("fmr_median_class", "FMR, median class", higher_is_better=False),
        MetricDescription("fmr_worst_class", "FMR, worst class", higher_is_better=False),
        MetricDescription("fnmr_median_class", "FNMR, median class", higher_is_better=False),
        MetricDescription("fnmr_worst_class", "FNMR, worst class", higher_is_better=False),
        MetricDescription("calibration_slope", "slope of log odds", shown_in_percent=False),
        MetricDescription("calibration_intercept", "log odds at similarity 0", shown_in_percent=False),
        MetricDescription("calibration_prior", "pairs of one class (val)"),
        MetricDescription("ece", "ECE", higher_is_better=False),
        MetricDescription("brier", "Brier score", higher_is_better=False, shown_in_percent=False),
        MetricDescription("log_loss", "log loss", higher_is_better=False, shown_in_percent=False),
        MetricDescription("ece_balanced", "ECE, balanced", higher_is_better=False),
        MetricDescription("brier_balanced", "Brier score, balanced", higher_is_better=False, shown_in_percent=False),
        MetricDescription("log_loss_balanced", "log loss, balanced", higher_is_better=False, shown_in_percent=False),
        MetricDescription("unknown_auroc", "AUROC of known queries"),
        MetricDescription("known_accepted", "known queries accepted"),
        MetricDescription("known_identified", "known queries identified"),
        MetricDescription("unknown_accepted", "unknown queries accepted", higher_is_better=False),
    )
}
"""The metrics of a threshold, by their names in metrics.json without `THRESHOLD_PREFIX`."""

COUNTS = (QUERIES_WITHOUT_POSITIVES, "images_skipped", "queries_in_gallery")
"""The ends of the names of numbers in metrics.json that are no metrics."""


def describe_metric(name: str, custom: Iterable[Metric | MetricDescription] = ()) -> MetricDescription:
    """Describe a metric, or a count, by its name in metrics.json.

    >>> describe_metric("heads/L/level0/recall@4").label
    'R@4'

    Args:
        name: name in metrics.json, such as "level0/recall@1" or "raw/h_ap"; the last part of an unknown name is its
            label.
        custom: metrics that are known beside the packaged ones.
    """
    if name.startswith(THRESHOLD_PREFIX) and (known := THRESHOLD_METRICS.get(name.removeprefix(THRESHOLD_PREFIX))):
        return known
    parsed = MetricName.parse(name)
    metric = {metric.name: metric for metric in custom}.get(parsed.family) or METRICS_BY_NAME.get(parsed.family)
    if metric is None:
        is_count = parsed.family in COUNTS
        label = name.rpartition("/")[2]
        return MetricDescription(label, label, higher_is_better=not is_count, shown_in_percent=not is_count)
    label = metric.label if parsed.k is None else f"{metric.label}@{parsed.k}"
    return MetricDescription(metric.name, label, metric.higher_is_better, metric.shown_in_percent)


def metric_label(name: str, custom: Iterable[Metric | MetricDescription] = ()) -> str:
    """Return the label of a metric in tables: level0/recall@1 -> R@1; see `describe_metric`."""
    return describe_metric(name, custom).label


def format_percent(share: float, digits: int = 3) -> str:
    """Format a share in percent with some significant digits, never with an exponent.

    >>> format_percent(4.2e-7), format_percent(0.998, digits=2)
    ('0.000042', '100')

    Args:
        share: the share, from 0 to 1.
        digits: number of significant digits.
    """
    return np.format_float_positional(100 * share, precision=digits, fractional=False, trim="-")


def format_value(value: float, metric: MetricDescription) -> str:
    """Format a value of a metric: a fraction in percent, without the sign, any other with four significant digits.

    >>> format_value(0.6584, describe_metric("h_ap")), format_value(12.0, describe_metric("images_skipped"))
    ('65.8', '12')

    Args:
        value: value in metrics.json.
        metric: description of the metric.
    """
    if metric.shown_in_percent:
        return f"{100 * value:.1f}"
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


def describe_stored_metrics(config: Mapping[str, Any]) -> tuple[MetricDescription, ...]:
    """Describe the custom metrics of a stored configuration, without building them: nothing in the file is run.

    Args:
        config: configuration of a run; a metric of ``evaluation.metrics`` without a name is passed over.
    """
    evaluation = config.get("evaluation")
    metrics = evaluation.get("metrics") if isinstance(evaluation, Mapping) else None
    stored = [metric for metric in metrics if isinstance(metric, Mapping)] if isinstance(metrics, list) else []
    return tuple(
        MetricDescription(
            str(metric["name"]),
            str(metric.get("label", metric["name"])),
            higher_is_better=metric.get("higher_is_better", True) is not False,
            shown_in_percent=metric.get("shown_in_percent", True) is not False,
        )
        for metric in stored
        if "name" in metric
    )
