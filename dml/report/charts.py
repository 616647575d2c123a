"""The charts of a report: curves over the steps of a training, and the error rates of a similarity threshold."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES
from dml.evaluation.names import (
    THRESHOLD_PREFIX,
    MetricDescription,
    MetricName,
    describe_metric,
    format_percent,
    select_prefix,
)
from dml.evaluation.threshold import RELIABILITY, RELIABILITY_BALANCED, describe_choice, find_calibration
from dml.report.metrics import format_metric
from dml.report.run import ReportedRun

HEIGHT, NAME_HEIGHT = 220, 18
"""CSS pixels: the height of the box, and the smallest distance between the names of two curves."""
MOST_POINTS = 300
"""The largest number of points of a curve; a longer history is averaged in this many parts."""
SMOOTHED_FROM = 20
"""The smallest number of points of a curve that is smoothed."""
WINDOW = 0.1
"""The share of the points over which a smooth curve averages."""

Floats = npt.NDArray[np.float64]


class Tick(NamedTuple):
    """A mark on an axis, with its distance from the axis's start in percent of the axis."""

    position: float
    text: str


@dataclass(frozen=True)
class Curve:
    """One metric over the steps.

    ``last`` is the last logged value as text; ``top`` is in CSS pixels from the top of the box to the middle of the
    name. The SVG paths are the curve, a running mean of the points if they are many; the points themselves, if the
    curve is their mean; and single dots, if they are few.
    """

    name: str
    last: str
    path: str
    faint: str
    dots: str
    top: float


@dataclass(frozen=True)
class Chart:
    """Curves in one box, which share the axes.

    The first curve is that of the finest level, or of the whole loss. ``marked`` is the percent of the width from the
    left to the step that was tested; None if the step isn't on the axis. ``height`` is in CSS pixels.
    """

    title: str
    x: Sequence[Tick]
    y: Sequence[Tick]
    curves: Sequence[Curve]
    marked: float | None
    height: int = HEIGHT


def make_charts(
    history: Sequence[Mapping[str, float]],
    levels: Sequence[str],
    tested: int | None,
    custom: Sequence[MetricDescription] = (),
) -> list[Chart]:
    """Make a chart of the loss, and of each metric of the validations; charts without a point are left out.

    Of recall at several k the first is drawn, and no metric of a single head.

    Args:
        history: rows of metrics.csv with the keys "step", "loss", "loss/HEAD", "val/METRIC", and "test/METRIC" of a
            run that is validated on the test split.
        levels: names of the levels, the finest first.
        tested: step of the checkpoint that was tested.
        custom: custom metrics of the run.
    """
    columns = dict.fromkeys(name for row in history for name in row)
    losses = [name for name in columns if name == "loss" or name.startswith("loss/")]
    series_by_title = {"Training loss": {name: name.removeprefix("loss/") if "/" in name else "sum" for name in losses}}
    for split, words in (("val", "Validation"), ("test", "Test")):
        scopes = {f"{split}/level{i}": level for i, level in enumerate(levels)}
        scopes |= {split: "all levels", f"{split}/mean": "mean"}
        drawn = {QUERIES_WITHOUT_POSITIVES: ""}
        for name in columns:
            scope, _, metric = name.rpartition("/")
            if scope in scopes and drawn.setdefault(MetricName.parse(metric).family, metric) == metric:
                described = describe_metric(metric, custom)
                title = f"{words} {metric if described.name == 'recall' else described.label}"
                unit = ", %" if described.shown_in_percent else ""
                series_by_title.setdefault(title + unit, {})[name] = scopes[scope]
    charts = (_make_chart(history, title, series, tested) for title, series in series_by_title.items())
    return [chart for chart in charts if chart]


def choose_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Choose at most ``most`` + 2 round numbers that enclose low and high: their distance is 1, 2 or 5 times 10^n."""
    if not high > low:
        low, high = low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def smooth(values: Floats, window: int) -> Floats:
    """Compute the running mean over ``window`` values, and over fewer at the ends. (n,) -> (n,)"""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    middle = np.arange(len(values))
    first, after = np.maximum(middle - window // 2, 0), np.minimum(middle + window // 2 + 1, len(values))
    means: Floats = (sums[after] - sums[first]) / (after - first)
    return means


def _make_chart(
    history: Sequence[Mapping[str, float]], title: str, series: Mapping[str, str], tested: int | None
) -> Chart | None:
    """Make a chart of some metrics, {name in the history: name of the curve}; None if the history has none of them."""
    scale = 100 if title.endswith("%") else 1
    points, lasts, right = {}, {}, 0.0
    for metric, name in series.items():
        logged = [(row["step"], scale * row[metric]) for row in history if math.isfinite(row.get(metric, math.nan))]
        if logged:
            parts = np.array_split(np.array(logged), min(len(logged), MOST_POINTS))
            points[name] = np.array([part.mean(axis=0) for part in parts])
            last_step, lasts[name] = logged[-1]
            right = max(right, last_step)
    if not points:
        return None
    values = np.concatenate([*points.values()])[:, 1]
    right = right or 1.0  # the only validation may be before the first step
    y = choose_ticks(values.min(), values.max())
    if scale == 100:  # the ticks around values that are all equal may be outside of 0 to 100
        y = [value for value in y if -1e-9 < value < 100 + 1e-9]
    curves = [_draw_curve(name, points[name], last, (right, y[0], y[-1])) for name, last in lasts.items()]
    tops = _spread([curve.top for curve in curves])
    return Chart(
        title=title,
        x=[
            Tick(100 * step / right, f"{step:,.0f}")
            for step in choose_ticks(0, right)
            if step <= right and step % 1 == 0
        ],
        y=[Tick(100 * (1 - _scale(value, y[0], y[-1])), _format_tick(value, y[1] - y[0])) for value in y],
        curves=[replace(curve, top=top) for curve, top in zip(curves, tops, strict=True)],
        marked=100 * tested / right if tested is not None and 0 < tested <= right else None,
    )


def _draw_curve(name: str, points: Floats, last: float, axes: tuple[float, float, float]) -> Curve:
    """Draw a curve of steps and values (n, 2); the axes are the last step, the lowest and the highest value.

    ``last`` is the last logged value: the last of thinned points is a mean.
    """
    right, low, high = axes
    many = len(points) >= SMOOTHED_FROM
    drawn = smooth(points[:, 1], max(5, round(WINDOW * len(points)))) if many else points[:, 1]
    x = 100 * points[:, 0] / right
    y = 100 * (1 - _scale(drawn, low, high))
    return Curve(
        name=name,
        last=f"{last:.3g}" if abs(last) < 999.5 else f"{last:,.0f}",  # separators instead of an exponent
        path=draw_path(x, y),
        faint=draw_path(x, 100 * (1 - _scale(points[:, 1], low, high))) if many else "",
        dots="" if many else "".join(f"M{a:.2f} {b:.2f}h0" for a, b in zip(x, y, strict=True)),
        top=HEIGHT * float(y[-1]) / 100,
    )


def draw_path(x: Iterable[float], y: Iterable[float]) -> str:
    """Return the SVG path through some points."""
    return "M" + "L".join(f"{a:.2f} {b:.2f}" for a, b in zip(x, y, strict=True))


def _scale(value: Any, low: float, high: float) -> Any:
    """Return the position of a value between low, which is 0, and high, which is 1."""
    return (value - low) / (high - low)


def _format_tick(value: float, step: float) -> str:
    """Format the value of a tick with as many decimals as the distance to the next tick takes."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{decimals}f}"


def _spread(tops: Sequence[float]) -> list[float]:
    """Move names that would overlap: `NAME_HEIGHT` apart, in their order, and in the box if it is high enough."""
    order = np.argsort(tops, kind="stable")
    placed = np.array(tops, dtype=float)[order]
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + NAME_HEIGHT)
    for i in range(len(placed) - 1, -1, -1):
        limit = HEIGHT if i == len(placed) - 1 else placed[i + 1] - NAME_HEIGHT
        placed[i] = min(placed[i], limit)
    result = np.empty_like(placed)
    result[order] = placed
    return [round(float(top), 1) for top in result]


RELIABILITY_NAMES = {RELIABILITY: "all pairs", RELIABILITY_BALANCED: "balanced"}
"""The labels of the reliability curves by their names among the stored curves; all others are of splits."""

SPLITS = {"val": "validation", "train": "training"}
"""The words for splits that have other names in the configuration."""

FACTS = (
    *("eer", "fnmr@1e-2", "fnmr@1e-3", "fnmr@1e-4", "opis"),
    *("ece", "ece_balanced", "brier", "brier_balanced", "log_loss", "log_loss_balanced"),
    *("nearest_similarity", "unknown_auroc", "known_accepted", "known_identified", "unknown_accepted", "wrong_share"),
)
"""The metrics of the tested split that the section lists, without `THRESHOLD_PREFIX`."""


class PlottedCurve(NamedTuple):
    """An SVG path in a box of 100 x 100, and that of the point of the chosen threshold, empty if there is none."""

    name: str
    path: str
    chosen: str = ""


def make_threshold_section(run: ReportedRun) -> dict[str, Any] | None:
    """Make the section of the threshold; None if the run has none.

    Returns:
        "similarity", the threshold as text, and "choice", the end of a sentence on its aim; "curves", FNMR over the
        logarithm of FMR of each split, the tested one first, with the ticks "x"; "rows" {name: (FMR, FNMR)} in percent;
        "facts" {label: metric of the tested split}; "reliability", the curves of the share of pairs of one class over
        their probability, and "prior", that share in percent for which the probabilities are. Texts may be empty.
    """
    metrics = select_prefix(run.metrics, THRESHOLD_PREFIX)
    if not run.threshold_curves or not metrics:
        return None
    tested = str(run.metrics["split"])
    stored = {name: np.array(points) for name, points in run.threshold_curves.items()}
    curves = {name: points for name, points in stored.items() if name not in RELIABILITY_NAMES}
    smallest = min(points[0].min() for points in curves.values())
    decades = max(1, -int(np.floor(np.log10(smallest) + 1e-9)))  # a single negative pair has no rate but 1
    columns = {tested: ("fmr", "fnmr"), "val": ("val_fmr", "val_fnmr")}  # a tested "val" has only been chosen on
    names = {split: SPLITS.get(split, split) for split in ("val", tested)}
    names_by_row = {names[split]: columns[split] for split in names}
    for kind in ("median", "worst"):
        names_by_row[f"{names[tested]}, {kind} class"] = (f"fmr_{kind}_class", f"fnmr_{kind}_class")

    def place(fmr: Any) -> Any:
        return 100 * (1 + np.log10(fmr) / decades)

    def mark(split: str) -> str:
        """Draw the point of the chosen threshold; a rate of 0 is at the left end of the axis."""
        if columns[split][0] not in metrics:
            return ""
        fmr, fnmr = (metrics[name] for name in columns[split])
        return f"M{max(0.0, place(max(fmr, 1e-12))):.2f} {100 * (1 - fnmr):.2f}h0"

    calibration = find_calibration(metrics)
    described = {name: describe_metric(THRESHOLD_PREFIX + name) for name in FACTS if name in metrics}
    return {
        "similarity": f"{metrics['similarity']:.4f}" if "similarity" in metrics else "",
        "choice": describe_choice(metrics),
        "curves": [
            PlottedCurve(names[split], draw_path(place(points[0]), 100 * (1 - points[1])), mark(split))
            for split, points in sorted(curves.items(), key=lambda part: part[0] != tested)
        ],
        "x": [
            Tick(100 * (1 + power / decades), f"{10.0 ** (power + 2):.{max(0, -power - 2)}f}")  # in percent
            for power in range(-decades, 1)
        ],
        "rows": {
            row: (format_percent(metrics[fmr]), f"{100 * metrics[fnmr]:.1f}")
            for row, (fmr, fnmr) in names_by_row.items()
            if fmr in metrics
        },
        "facts": {
            metric.label: format_metric(metrics[name], metric) + (" %" if metric.shown_in_percent else "")
            for name, metric in described.items()
        },
        "reliability": [
            PlottedCurve(label, draw_path(100 * stored[name][0], 100 * (1 - stored[name][1])))
            for name, label in RELIABILITY_NAMES.items()
            if name in stored
        ],
        "prior": format_percent(calibration.prior, digits=2) if calibration else "",
    }
