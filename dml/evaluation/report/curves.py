"""Numbers over the steps of a training, as lines in a box of 100 x 100."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

HEIGHT, LINE = 220, 18  # CSS pixels: of the box, and from one line's name to the next
MOST_POINTS = 300  # of a line; longer histories are averaged in as many stretches
SMOOTHED_FROM = 20  # points
WINDOW = 0.1  # of the points, what a smooth line averages over

Floats = npt.NDArray[np.float64]


class Tick(NamedTuple):
    """A mark on an axis, at so many percent of it."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """One metric over the steps.

    Args:
        name: of the metric.
        last: its last value in words.
        path: SVG path; where there are many points a running mean, and `faint` is what it is the mean of.
        dots: SVG path of the single points; empty if there are many.
        top: CSS pixels from the box's top to the middle of the line's name.
    """

    name: str
    last: str
    path: str
    faint: str
    dots: str
    top: float


@dataclass(frozen=True)
class Chart:
    """Lines that share their axes.

    Args:
        title: what is drawn, with its unit.
        x, y: the axes' ticks, in percent from the left and from the top.
        lines: finest level, or sum, first.
        marked: percent from the left to the step that was tested, if it is on the axis.
    """

    title: str
    x: Sequence[Tick]
    y: Sequence[Tick]
    lines: Sequence[Line]
    marked: float | None
    height: int = HEIGHT


def charts(history: Sequence[Mapping[str, float]], levels: Sequence[str], tested: int | None) -> list[Chart]:
    """The loss, and the validation's recall@1 and MAP@R at each level, as far as they were logged.

    Args:
        history: rows of metrics.csv: "step", "loss", "loss/HEAD", and what a validation gave as "val/..." or, if it
            passed over the test split, "test/...".
        levels: the levels' names.
        tested: the step that was tested.
    """
    losses = dict.fromkeys(name for row in history for name in row if name == "loss" or name.startswith("loss/"))
    shown = {"Training loss": {name: name.removeprefix("loss/") if "/" in name else "sum" for name in losses}}
    for split, words in (("val", "Validation"), ("test", "Test")):
        for metric, title in (("recall@1", "recall@1"), ("map@r", "MAP@R")):
            shown[f"{words} {title}, %"] = {f"{split}/level{i}/{metric}": level for i, level in enumerate(levels)}
    drawn = (_chart(history, title, series, tested) for title, series in shown.items())
    return [chart for chart in drawn if chart]


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, that enclose low and high: at most ``most`` + 2."""
    if not high > low:
        low, high = low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def smooth(values: Floats, window: int) -> Floats:
    """(n,) -> the mean of each value and those around it, ``window`` in all, fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    middle = np.arange(len(values))
    first, after = np.maximum(middle - window // 2, 0), np.minimum(middle + window // 2 + 1, len(values))
    means: Floats = (sums[after] - sums[first]) / (after - first)
    return means


def _chart(
    history: Sequence[Mapping[str, float]], title: str, series: Mapping[str, str], tested: int | None
) -> Chart | None:
    scale = 100 if title.endswith("%") else 1
    points = {}
    for metric, name in series.items():
        logged = [(row["step"], scale * row[metric]) for row in history if math.isfinite(row.get(metric, math.nan))]
        if logged:
            points[name] = _thinned(np.array(logged))
    if not points:
        return None
    steps, values = (np.concatenate([each[:, axis] for each in points.values()]) for axis in (0, 1))
    right = float(steps.max())
    y = ticks(values.min(), values.max())
    lines = [_line(name, each, (right, y[0], y[-1])) for name, each in points.items()]
    tops = _apart([line.top for line in lines])
    return Chart(
        title=title,
        x=[Tick(100 * step / right, f"{step:,.0f}") for step in ticks(0, right) if step <= right and step % 1 == 0],
        y=[Tick(100 * (1 - _share(value, y[0], y[-1])), _text(value, y[1] - y[0])) for value in y],
        lines=[replace(line, top=top) for line, top in zip(lines, tops, strict=True)],
        marked=100 * tested / right if tested is not None and 0 < tested <= right else None,
    )


def _thinned(points: Floats) -> Floats:
    """(n, 2) -> at most `MOST_POINTS` of them, the means of equal stretches."""
    if len(points) <= MOST_POINTS:
        return points
    return np.array([stretch.mean(axis=0) for stretch in np.array_split(points, MOST_POINTS)])


def _line(name: str, points: Floats, axes: tuple[float, float, float]) -> Line:
    right, low, high = axes
    many = len(points) >= SMOOTHED_FROM
    drawn = smooth(points[:, 1], max(5, round(WINDOW * len(points)))) if many else points[:, 1]
    x = 100 * points[:, 0] / right
    y = 100 * (1 - _share(drawn, low, high))
    return Line(
        name=name,
        last=f"{drawn[-1]:.3g}",
        path=_path(x, y),
        faint=_path(x, 100 * (1 - _share(points[:, 1], low, high))) if many else "",
        dots="" if many else "".join(f"M{a:.2f} {b:.2f}h0" for a, b in zip(x, y, strict=True)),
        top=HEIGHT * float(y[-1]) / 100,
    )


def _path(x: Iterable[float], y: Iterable[float]) -> str:
    return "M" + "L".join(f"{a:.2f} {b:.2f}" for a, b in zip(x, y, strict=True))


def _share(value: Any, low: float, high: float) -> Any:
    return (value - low) / (high - low)


def _text(value: float, step: float) -> str:
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:.{decimals}f}"


def _apart(tops: Sequence[float]) -> list[float]:
    """Moves names that would overlap: `LINE` apart, in their order, within the box as far as it is high enough."""
    order = np.argsort(tops, kind="stable")
    placed = np.array(tops, dtype=float)[order]
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + LINE)
    for i in range(len(placed) - 1, -1, -1):
        limit = HEIGHT if i == len(placed) - 1 else placed[i + 1] - LINE
        placed[i] = min(placed[i], limit)
    result = np.empty_like(placed)
    result[order] = placed
    return [round(float(top), 1) for top in result]
