"""How tables and reports name metrics of metrics.json, and in which form and selection they show them."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml.evaluation.metric import (
    COUNTS,
    HEADS,
    PCA,
    QUERIES_WITHOUT_POSITIVES,
    RERANKED,
    Metric,
    MetricName,
    find_packaged,
    split_head_names,
)

RERANKING_LABELS = {"alpha_qe": "alpha-QE", "k_reciprocal": "k-reciprocal"}
"""The labels of re-rankings by name."""

SCOPE = re.compile(rf"level\d+|mean|raw|fixed|threshold|{HEADS}|{PCA}|{RERANKED}")
"""The first part of a metric's name, where it isn't a name in ``evaluation.other_labels``."""


class MetricDescription(NamedTuple):
    """A metric without its function, as a finished run names it; the fields are those of `Metric`."""

    name: str
    label: str
    higher_is_better: bool = True
    shown_in_percent: bool = True


THRESHOLD_PREFIX = "threshold/"
"""The beginning of the names in metrics.json of a threshold and its errors, see `dml.evaluation.threshold`."""

CALIBRATION_PREFIX = "calibration_"
"""The beginning, behind `THRESHOLD_PREFIX`, of the names of the values of a `dml.metrics.verification.Calibration`."""

_lower = partial(MetricDescription, higher_is_better=False)
_plain = partial(MetricDescription, shown_in_percent=False)

THRESHOLD_METRICS = (
    _plain("similarity", "threshold"),
    _plain("nearest_similarity", "threshold of searches"),
    _lower("val_fmr", "FMR (val)"),
    _lower("val_fnmr", "FNMR (val)"),
    _lower("wanted_fmr", "wanted FMR"),
    _lower("wanted_wrong_share", 'wanted wrong "same"'),
    MetricDescription("val_known_accepted", "known queries accepted (val)"),
    _lower("val_wrong_share", 'wrong "same" (val)'),
    _lower("wrong_share", 'wrong "same"'),
    _lower("fmr", "FMR"),
    _lower("fnmr", "FNMR"),
    MetricDescription("balanced_accuracy", "balanced accuracy"),
    _lower("fmr_median_class", "FMR, median class"),
    _lower("fmr_worst_class", "FMR, worst class"),
    _lower("fnmr_median_class", "FNMR, median class"),
    _lower("fnmr_worst_class", "FNMR, worst class"),
    _plain("calibration_slope", "slope of log odds"),
    _plain("calibration_intercept", "log odds at similarity 0"),
    MetricDescription("calibration_prior", "pairs of one class (val)"),
    _lower("ece", "ECE"),
    _lower("brier", "Brier score", shown_in_percent=False),
    _lower("log_loss", "log loss", shown_in_percent=False),
    _lower("ece_balanced", "ECE, balanced"),
    _lower("brier_balanced", "Brier score, balanced", shown_in_percent=False),
    _lower("log_loss_balanced", "log loss, balanced", shown_in_percent=False),
    MetricDescription("unknown_auroc", "AUROC of known queries"),
    MetricDescription("known_accepted", "known queries accepted"),
    MetricDescription("known_identified", "known queries identified"),
    _lower("unknown_accepted", "unknown queries accepted"),
)
"""The metrics of a threshold, named as in metrics.json without `THRESHOLD_PREFIX`."""


def describe_metric(name: str, custom: Iterable[Metric | MetricDescription] = ()) -> MetricDescription:
    """Describe a packaged or custom metric, or a count, by its name in metrics.json; an unknown one by the end of it.

    >>> describe_metric("heads/L/level0/recall@4").label
    'R@4'
    """
    for known in THRESHOLD_METRICS:
        if name == f"{THRESHOLD_PREFIX}{known.name}":
            return known
    parsed = MetricName.parse(name)
    metric = {metric.name: metric for metric in custom}.get(parsed.family) or find_packaged(parsed.family)
    if metric is None:
        is_count, label = parsed.family in COUNTS, name.rpartition("/")[2]
        return MetricDescription(label, label, higher_is_better=not is_count, shown_in_percent=not is_count)
    label = metric.label if parsed.k is None else f"{metric.label}@{parsed.k}"
    return MetricDescription(metric.name, label, metric.higher_is_better, metric.shown_in_percent)


def describe_stored_metrics(config: Mapping[str, Any]) -> tuple[MetricDescription, ...]:
    """Describe the custom metrics of a stored configuration, without building them: nothing in the file is run."""
    metrics = (config.get("evaluation") or {}).get("metrics")
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


def format_percent(share: float, digits: int = 3) -> str:
    """Format a share in percent with some significant digits, never with an exponent.

    >>> format_percent(4.2e-7), format_percent(0.998, digits=2)
    ('0.000042', '100')
    """
    return np.format_float_positional(100 * share, precision=digits, fractional=False, trim="-")


def format_value(value: float | None, metric: MetricDescription) -> str:
    """Format a value of a metric: a fraction in percent, without the sign, any other with four significant digits.

    None and NaN are a dash.

    >>> format_value(0.6584, describe_metric("h_ap")), format_value(12.0, describe_metric("images_skipped"))
    ('65.8', '12')
    """
    if value is None or math.isnan(value):
        return "–"
    if metric.shown_in_percent:
        return f"{100 * value:.1f}"
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


def is_joint_metric(name: str, value: Any) -> bool:
    """Return whether an entry of metrics.json is a metric of all heads together: no count, no step, no raw/...."""
    scope, _, metric = name.rpartition("/")
    in_scope = re.fullmatch(r"(level\d+|mean)?", scope) is not None
    return in_scope and isinstance(value, float) and metric != QUERIES_WITHOUT_POSITIVES


def select_prefix(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the metrics whose names begin with a prefix, named without it."""
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def split_parts(metrics: Mapping[str, Any], before: str, whole_label: str) -> dict[str, dict[str, Any]]:
    """Return the metrics of metrics.json of each part of a test, named without the part, by the label of tables.

    The label of the backbone's own features is ``before``, and that of all heads ``whole_label``, unless the training
    chose some. The ``evaluation.other_labels`` are parts too.

    >>> [*split_parts({"raw/h_ap": 0.1, "heads/L+M/h_ap": 0.2, "reranked/alpha_qe/h_ap": 0.4}, "before", "all heads")]
    ['before', 'heads L, M', 'all heads', '+ alpha-QE']
    """
    labels = {"raw/": before, f"raw/{PCA}/": f"{before}, PCA"}
    for heads in filter(None, (MetricName.parse(name).heads for name in metrics)):
        names = split_head_names(heads)
        labels[f"{HEADS}/{heads}/"] = f"head{'s' * (len(names) > 1)} {', '.join(names)}"
    chosen = metrics.get("chosen_heads")
    labels[""] = f"chosen: {', '.join(split_head_names(chosen))}" if chosen else whole_label
    labels |= {f"{RERANKED}/{name}/": f"+ {label}" for name, label in RERANKING_LABELS.items()}
    for name in metrics:
        prefix, _, steps = name.rpartition("/")[0].partition("/")
        if re.match(r"level\d", steps) and not SCOPE.fullmatch(prefix):
            labels[f"{prefix}/"] = prefix
    parts = {label: select_prefix(metrics, prefix) for prefix, label in labels.items()}
    return {label: part for label, part in parts.items() if part}


def choose_shown_metrics(names: Iterable[str]) -> list[str]:
    """Return the metrics of the finest level, or of all levels together, that fit a line: recall at one k alone."""
    by_family: dict[str, str] = {}
    for name in names:
        if name.rpartition("/")[0] in ("", "level0") and not name.endswith(QUERIES_WITHOUT_POSITIVES):
            by_family.setdefault(MetricName.parse(name).family, name)
    return [*by_family.values()]


def choose_first_metric(metrics: Mapping[str, Any]) -> str | None:
    """Return the name of the metric that stands first in `summary_table`; None without any."""
    full_names = _list_level_metrics(metrics)
    names = [full_names[name] for name in choose_level_metrics(metrics)] + choose_joint_metrics(metrics)
    return names[0] if names else None


def choose_level_metrics(metrics: Mapping[str, Any], custom: Sequence[Metric] = ()) -> list[str]:
    """Return metrics that fit 80 columns: up to four of recall@k, the user's metrics, map@r, map@k, mmp5, nmi and ap.

    With a list for each level, as in DyML, ap and asi come before map@r. Without any of these they are the first six of
    a level.
    """
    names = [*_list_level_metrics(metrics)]
    recalls = [name for name in names if name.startswith("recall@")][:4]
    custom_names = {metric.name for metric in custom}
    more = [name for name in names if MetricName.parse(name).family in custom_names]
    first_of_lists = ("ap", "asi") if any(name.startswith("mean/") for name in metrics) else ()
    starts = (*first_of_lists, "map@r", "map@", "mmp5", "nmi", "ap")
    more += [name for start in starts for name in names if name.startswith(start)]
    return recalls + [*dict.fromkeys(more)][: 6 + bool(first_of_lists) - len(recalls)] or names[:6]


def _list_level_metrics(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return {metric: its name at the first level that has it}; some benchmarks have no metrics at level 0."""
    names: dict[str, str] = {}
    for name, value in metrics.items():
        if re.match(r"level\d+/", name) and is_joint_metric(name, value):
            names.setdefault(name.partition("/")[2], name)
    return names


def choose_joint_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics of all levels together."""
    return [name for name, value in metrics.items() if "/" not in name and is_joint_metric(name, value)]


def name_dataset(config: Mapping[str, Any]) -> str:
    """Return the name of a run's data set; for images of the user's own it is that of their folder or list."""
    dataset = config.get("dataset") or {}
    name = str(dataset.get("name"))
    return (Path(dataset.get("root") or "").name if name in ("folder", "csv") else "") or name
