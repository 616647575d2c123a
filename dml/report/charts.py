"""What a report draws: curves of a training, the error rates of a similarity threshold, and the map of embeddings."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES, MetricName
from dml.evaluation.names import (
    THRESHOLD_PREFIX,
    MetricDescription,
    describe_metric,
    format_percent,
    format_value,
    select_prefix,
)
from dml.evaluation.per_query import QueryTable
from dml.evaluation.threshold import describe_choice, find_calibration
from dml.report.pictures import choose_queries
from dml.report.run import ReportedRun
from dml.retrieval.rows import Embeddings, UnitEmbeddings

MOST_POINTS = 100
"""The largest number of points of a curve: a longer history is averaged in this many parts, which smooths it."""
MOST_DOTS = 20
"""The largest number of points that are drawn as dots, too."""


class Tick(NamedTuple):
    """A mark on an axis, with its distance from the axis's start in percent of the axis."""

    position: float
    text: str


class Curve(NamedTuple):
    """A curve in a box of 100 x 100, with its last value as text."""

    name: str
    path: str  # of SVG
    dots: str = ""  # the SVG path of single points: those of a short curve, or that of the chosen threshold
    last: str = ""


@dataclass(frozen=True)
class Chart:
    """Curves in one box, which share the axes; ticks are in percent from the left and from the top."""

    title: str
    x: Sequence[Tick]
    y: Sequence[Tick]
    curves: Sequence[Curve]
    x_name: str = "step"
    marked: float | None = None  # percent from the left to the step that was tested


def make_charts(
    history: Sequence[Mapping[str, float]],
    levels: Sequence[str],
    tested: int | None,
    custom: Sequence[MetricDescription] = (),
) -> list[Chart]:
    """Make a chart of the loss, and of each metric of the validations; charts without a point are left out.

    Of recall at several k the first is drawn, and no metric of a single head. ``history`` are the rows of metrics.csv,
    and ``tested`` is the step of the checkpoint that was tested.
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


def _make_chart(
    history: Sequence[Mapping[str, float]], title: str, series: Mapping[str, str], tested: int | None
) -> Chart | None:
    """Make a chart of {name in the history: name of the curve}; None if the history has none of them."""
    scale = 100 if title.endswith("%") else 1
    points, lasts = {}, {}
    for metric, name in series.items():
        logged = [(row["step"], scale * row[metric]) for row in history if math.isfinite(row.get(metric, math.nan))]
        if logged:
            parts = np.array_split(np.array(logged), min(len(logged), MOST_POINTS))
            points[name] = np.array([part.mean(axis=0) for part in parts])
            lasts[name] = logged[-1]  # the last of averaged points is a mean
    if not points:
        return None
    right = max(step for step, _ in lasts.values()) or 1.0  # the only validation may be before the first step
    values = np.concatenate([*points.values()])[:, 1]
    ticks = choose_ticks(values.min(), values.max())
    if scale == 100:  # the ticks around values that are all equal may be outside of 0 to 100
        ticks = [value for value in ticks if -1e-9 < value < 100 + 1e-9]
    low, high = ticks[0], ticks[-1]
    curves = []
    for name, drawn in points.items():
        x, y = 100 * drawn[:, 0] / right, 100 * (high - drawn[:, 1]) / (high - low)
        dots = draw_dots(x, y) if len(drawn) <= MOST_DOTS else ""
        curves.append(Curve(name, draw_path(x, y), dots, _format_number(lasts[name][1])))
    decimals = max(0, -math.floor(math.log10(ticks[1] - low) + 1e-9))
    steps = [step for step in choose_ticks(0, right) if step <= right and step % 1 == 0]
    return Chart(
        title=title,
        x=[Tick(100 * step / right, f"{step:,.0f}") for step in steps],
        y=[Tick(100 * (high - value) / (high - low), f"{value:,.{decimals}f}") for value in ticks],
        curves=curves,
        marked=100 * tested / right if tested is not None and 0 < tested <= right else None,
    )


def choose_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Choose at most ``most`` + 2 round numbers that enclose low and high: their distance is 1, 2 or 5 times 10^n."""
    if not high > low:
        low, high = low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def draw_path(x: Iterable[float], y: Iterable[float]) -> str:
    """Return the SVG path through some points."""
    return "M" + "L".join(f"{a:.2f} {b:.2f}" for a, b in zip(x, y, strict=True))


def draw_dots(x: Iterable[float], y: Iterable[float]) -> str:
    """Return the SVG path of single points."""
    return "".join(f"M{a:.2f} {b:.2f}h0" for a, b in zip(x, y, strict=True))


def _format_number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"  # separators instead of an exponent


SPLITS = {"val": "validation", "train": "training"}
"""The words for splits that have other names in the configuration."""
FACTS = (
    *("eer", "fnmr@1e-2", "fnmr@1e-3", "fnmr@1e-4", "opis"),
    *("ece", "ece_balanced", "brier", "brier_balanced", "log_loss", "log_loss_balanced"),
    *("nearest_similarity", "unknown_auroc", "known_accepted", "known_identified", "unknown_accepted", "wrong_share"),
)
"""The metrics of the tested split that the section lists, without `THRESHOLD_PREFIX`."""


def make_threshold_section(run: ReportedRun) -> dict[str, Any] | None:
    """Make the section of the threshold, as run.html.j2 takes it; None if the run has none."""
    metrics = select_prefix(run.metrics, THRESHOLD_PREFIX)
    if not run.threshold_curves or not metrics:
        return None
    tested = str(run.metrics["split"])
    columns = {"val": ("val_fmr", "val_fnmr"), tested: ("fmr", "fnmr")}  # a tested "val" has only been chosen on
    rates = {SPLITS.get(split, split): names for split, names in columns.items()}
    for kind in ("median", "worst"):
        rates[f"{SPLITS.get(tested, tested)}, {kind} class"] = (f"fmr_{kind}_class", f"fnmr_{kind}_class")
    curves = {name: np.array(points) for name, points in run.threshold_curves.items()}
    splits = sorted(curves, key=lambda split: split != tested)
    chosen = {split: (metrics[fmr], metrics[fnmr]) for split, (fmr, fnmr) in columns.items() if fmr in metrics}
    calibration = find_calibration(metrics)
    described = {name: describe_metric(THRESHOLD_PREFIX + name) for name in FACTS if name in metrics}
    return {
        "similarity": f"{metrics['similarity']:.4f}" if "similarity" in metrics else "",
        "choice": describe_choice(metrics),  # the end of a sentence
        "chart": _make_error_chart({split: curves[split] for split in splits}, chosen),
        "rows": {  # FMR and FNMR in percent
            row: (format_percent(metrics[fmr]), f"{100 * metrics[fnmr]:.1f}")
            for row, (fmr, fnmr) in rates.items()
            if fmr in metrics
        },
        "facts": {
            metric.label: format_value(metrics[name], metric) + (" %" if metric.shown_in_percent else "")
            for name, metric in described.items()
        },
        "prior": format_percent(calibration.prior, digits=2) if calibration else "",
    }


def _make_error_chart(curves: Mapping[str, Any], chosen: Mapping[str, tuple[float, float]]) -> Chart:
    """Draw FNMR over the logarithm of FMR, {split: (2, P)}, with the point of the chosen threshold of some splits."""
    smallest = min(fmr.min() for fmr, _ in curves.values())
    decades = max(1, -math.floor(math.log10(smallest) + 1e-9))  # a single negative pair has no rate but 1

    def place(fmr: Any) -> Any:
        return 1 + np.log10(fmr) / decades

    drawn = []
    for split, (fmr, fnmr) in curves.items():
        dots = ""
        if split in chosen:  # a rate of 0 is at the left end of the axis
            x, y = chosen[split]
            dots = draw_dots([100 * max(0.0, place(max(x, 1e-12)))], [100 * (1 - y)])
        path = draw_path(100 * place(fmr), 100 * (1 - fnmr))
        drawn.append(Curve(SPLITS.get(split, split), path, dots))
    return Chart(
        title="FNMR over FMR of all thresholds, %",
        x=[
            Tick(100 * (1 + power / decades), f"{10.0 ** (power + 2):.{max(0, -power - 2)}f}")
            for power in range(-decades, 1)
        ],
        y=[Tick(100 - percent, str(percent)) for percent in range(0, 101, 20)],
        curves=drawn,
        x_name="FMR",
    )


POINTS = 1000
"""The largest number of points on a map: t-SNE places them in about 4 seconds on one core."""
FEWEST = 5
"""The smallest number of points that have neighborhoods to keep."""
FEW = 12
"""The largest number of classes that colors can tell apart."""


def embedding_map(
    embeddings: Embeddings | UnitEmbeddings, *, points: int = POINTS, seed: int = 0
) -> npt.NDArray[np.float32]:
    """Compute places in the plane at which near embeddings stay near, by t-SNE. (N, D) -> (N, 2) float32

    ``points`` rows are drawn at random; the others are NaN, as are all of fewer than 5. The same input gives the same
    places on the same machine. Source: van der Maaten and Hinton, 2008; scikit-learn's Barnes-Hut approximation.
    """
    from sklearn.manifold import TSNE  # late: it takes seconds, and most evaluations draw no map

    rows = UnitEmbeddings.normalize(embeddings).rows.cpu().numpy()
    places = np.full((len(rows), 2), np.nan, dtype=np.float32)
    if len(rows) < FEWEST:
        return places
    chosen = choose_queries(len(rows), points, seed)
    drawn = rows[chosen]
    can_project = drawn.shape[1] > 1 and np.ptp(drawn, axis=0).any()
    tsne = TSNE(
        perplexity=min(30, (len(drawn) - 1) / 3),
        init="pca" if can_project else "random",
        angle=0.8,
        max_iter=500,
        random_state=seed,
        n_jobs=1,
    )
    with threadpool_limits(1):  # threads would add in any order
        places[chosen] = tsne.fit_transform(drawn)
    return places


class MapDots(NamedTuple):
    """The dots of one class on the map: its name, a color in CSS, and an SVG path."""

    name: str
    color: str
    path: str


def draw_map(table: QueryTable) -> dict[str, Any] | None:
    """Draw the map, 100 wide, with the colors of the finest level with at most `FEW` classes; None without places."""
    if table.positions is None:
        return None
    rows = np.flatnonzero(~np.isnan(table.positions).any(axis=1))
    places = table.positions[rows].astype(np.float64)
    if np.ptp(places[:, 1]) > np.ptp(places[:, 0]):
        places = places[:, ::-1]  # t-SNE has no up and down, and screens are wide
    places = places - places.min(axis=0)
    places *= 100 / max(float(places[:, 0].max()), 1e-9)
    labels = table.labels[rows]
    level = next((i for i in range(labels.shape[1]) if len(np.unique(labels[:, i])) <= FEW), labels.shape[1] - 1)
    families = np.unique(labels[:, level]).tolist()
    colors = {label: _choose_color(i, len(families)) for i, label in enumerate(families)}
    dots = []
    for classes in np.unique(labels, axis=0).tolist():
        members = (labels == classes).all(axis=1)
        path = draw_dots(*places[members].T)
        dots.append(MapDots(table.class_name(classes[0]), colors[classes[level]], path))
    return {
        "points": len(rows),
        "height": round(float(places[:, 1].max()), 2),
        "dots": dots,
        "level": table.levels[level],
        "colors": {table.class_name(label, level): color for label, color in colors.items() if len(colors) <= FEW},
    }


def _choose_color(number: int, count: int) -> str:
    """Return the color of a class: hues are evenly spaced, light and dark alternate."""
    return f"oklch({(0.56, 0.76)[number % 2]} 0.14 {360 * number / count + 25:.0f})"
