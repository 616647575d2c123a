"""The section of a report on a threshold: the errors of all thresholds, and those of the one that was chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dml.evaluation.printed_metrics.metric_descriptions import THRESHOLD_PREFIX, describe_metric, format_percent
from dml.evaluation.report.curves import Tick, draw_path
from dml.evaluation.report.metrics import format_metric
from dml.evaluation.report.reported_run import ReportedRun
from dml.evaluation.threshold.stored_calibration import (
    RELIABILITY,
    RELIABILITY_BALANCED,
    describe_choice,
    find_calibration,
)

RELIABILITY_NAMES = {RELIABILITY: "all pairs", RELIABILITY_BALANCED: "balanced"}
"""The labels of the reliability curves by their names among the stored curves; all others are of splits."""

SPLITS = {"val": "validation", "train": "training"}
"""The words for splits that have other names in the configuration."""

FACTS = (
    "eer",
    "fnmr@1e-2",
    "fnmr@1e-3",
    "fnmr@1e-4",
    "opis",
    "ece",
    "ece_balanced",
    "brier",
    "brier_balanced",
    "log_loss",
    "log_loss_balanced",
    "unknown_auroc",
    "known_accepted",
    "known_identified",
    "unknown_accepted",
    "wrong_share",
)
"""The metrics of the tested split that the section lists, without `THRESHOLD_PREFIX`."""


@dataclass(frozen=True)
class PlottedCurve:
    """A curve in a box of 100 x 100.

    Args:
        name: pairs that the curve is of, such as those of a split.
        path: SVG path of the curve.
        chosen: SVG path of the point of the chosen threshold; empty if the curve has none.
    """

    name: str
    path: str
    chosen: str = ""


@dataclass(frozen=True)
class ThresholdSection:
    """What the report shows of a threshold.

    Args:
        similarity: the threshold, as text; empty if the run has none.
        choice: aim of the choice of the threshold, as the end of a sentence.
        curves: FNMR over the logarithm of FMR of each split, the tested one first.
        x: ticks of the horizontal axis, FMR, which are counted from the left.
        rows: {name: (FMR, FNMR)} of the chosen threshold in percent: of splits, and of the median and the worst class.
        facts: further metrics of the tested split by their labels.
        reliability: share of pairs of one class over their mean probability, on the tested split.
        prior: share of pairs of one class for which the probabilities are, in percent; empty if the run has none.
    """

    similarity: str
    choice: str
    curves: Sequence[PlottedCurve]
    x: Sequence[Tick]
    rows: Mapping[str, tuple[str, str]]
    facts: Mapping[str, str]
    reliability: Sequence[PlottedCurve]
    prior: str


def make_threshold_section(run: ReportedRun) -> ThresholdSection | None:
    """Make the section of the threshold; None if the run has none."""
    metrics = run.select_metrics(THRESHOLD_PREFIX)
    if not run.threshold_curves or not metrics:
        return None
    tested = str(run.metrics["split"])
    stored = {name: np.array(points) for name, points in run.threshold_curves.items()}
    curves = {name: points for name, points in stored.items() if name not in RELIABILITY_NAMES}
    smallest = min(points[0].min() for points in curves.values())
    decades = max(1, -int(np.floor(np.log10(smallest) + 1e-9)))  # a single negative pair has no rate but 1
    columns = {tested: ("fmr", "fnmr"), "val": ("val_fmr", "val_fnmr")}  # a tested "val" has only been chosen on
    names_by_row = {_name_split(split): columns[split] for split in dict.fromkeys(("val", tested))}
    for kind in ("median", "worst"):
        names_by_row[f"{_name_split(tested)}, {kind} class"] = (f"fmr_{kind}_class", f"fnmr_{kind}_class")
    rows = {row: _format_rates(metrics, names) for row, names in names_by_row.items() if names[0] in metrics}
    return ThresholdSection(
        similarity=f"{metrics['similarity']:.4f}" if "similarity" in metrics else "",
        choice=describe_choice(metrics),
        curves=[
            PlottedCurve(_name_split(split), _draw(points, decades), _draw_chosen(metrics, columns[split], decades))
            for split, points in sorted(curves.items(), key=lambda part: part[0] != tested)
        ],
        x=[Tick(100 * (1 + power / decades), _name_power(power)) for power in range(-decades, 1)],
        rows=rows,
        facts={
            metric.label: format_metric(metrics[name], metric) + (" %" if metric.shown_in_percent else "")
            for name in FACTS
            if name in metrics
            for metric in [describe_metric(THRESHOLD_PREFIX + name)]
        },
        reliability=[
            PlottedCurve(label, draw_path(100 * stored[name][0], 100 * (1 - stored[name][1])))
            for name, label in RELIABILITY_NAMES.items()
            if name in stored
        ],
        prior=format_percent(calibration.prior, digits=2) if (calibration := find_calibration(metrics)) else "",
    )


def _name_split(split: str) -> str:
    return SPLITS.get(split, split)


def _name_power(power: int) -> str:
    """Return a power of ten in percent: -3 -> "0.1"."""
    return f"{10.0 ** (power + 2):.{max(0, -power - 2)}f}"


def _format_rates(metrics: Mapping[str, float], names: tuple[str, str]) -> tuple[str, str]:
    """Return both rates in percent, with three significant digits for the small ones."""
    fmr, fnmr = (metrics[name] for name in names)
    return format_percent(fmr), f"{100 * fnmr:.1f}"


def _draw(points: npt.NDArray[np.float64], decades: int) -> str:
    """Draw FNMR over the logarithm of FMR. (2, P) -> SVG path"""
    return draw_path(100 * (1 + np.log10(points[0]) / decades), 100 * (1 - points[1]))


def _draw_chosen(metrics: Mapping[str, float], names: tuple[str, str], decades: int) -> str:
    """Draw the point of the chosen threshold; a rate of 0 is at the left end of the axis."""
    if names[0] not in metrics:
        return ""
    fmr, fnmr = (metrics[name] for name in names)
    x = max(0.0, 100 * (1 + np.log10(max(fmr, 1e-12)) / decades))
    return f"M{x:.2f} {100 * (1 - fnmr):.2f}h0"
