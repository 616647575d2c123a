"""The figure of a claim: each comparison's differences seed by seed, with their mean and its interval."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dml.ops.files import replacing
from dml.papers.claims.verdicts import Outcome, Verdict

COLORS = {
    Verdict.CONFIRMED: "#1b6e3c",
    Verdict.NOT_CONFIRMED: "#4a5560",
    Verdict.REVERSED: "#b3261e",
    Verdict.OPEN: "#8a929a",
}
WIDTH, ROW_HEIGHT, MARGINS = 8.0, 0.42, 1.0
"""Inches of the figure, of a comparison's row, and of the space above and below the rows together."""

SEED_OFFSET = 0.24
"""Distance, in rows, of the dots of the single seeds below the mean."""


def draw_outcomes(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the figure of a claim into a PNG file; the same numbers give the same bytes.

    Args:
        outcomes: outcomes to draw, the first in the top row; the row of an outcome without differences stays empty.
        path: file to write; a missing folder is made.
    """
    height = MARGINS + ROW_HEIGHT * len(outcomes)
    figure = Figure(figsize=(WIDTH, height), dpi=150, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color="#20262c", linewidth=1)
    for row, outcome in enumerate(outcomes):
        _draw_row(axes, row, outcome)
    axes.set_yticks(range(len(outcomes)), [str(outcome.comparison) for outcome in outcomes])
    axes.set_ylim(len(outcomes) - 0.4, -0.6)
    axes.set_xlabel("difference on the test classes, percent points (above 0: as claimed)")
    axes.grid(axis="x", color="#e3e6e9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})


def _draw_row(axes: Axes, row: int, outcome: Outcome) -> None:
    color, interval, margin = COLORS[outcome.verdict], outcome.interval, outcome.comparison.margin
    if margin:  # a dotted line marks the end of the margin, above which the differences have to lie instead of 0
        axes.plot([-margin] * 2, [row - 0.4, row + 0.4], color="#20262c", linewidth=1, linestyle=":")
    if interval is None:
        return
    differences = list(outcome.differences.values())
    heights = [row + SEED_OFFSET] * len(differences)
    axes.plot(differences, heights, "o", markersize=5, color=color, alpha=0.35, markeredgewidth=0)
    if interval.runs > 1:
        axes.errorbar(interval.mean, row, xerr=interval.half_width, color=color, capsize=4, linewidth=1.6)
    axes.plot(interval.mean, row, "D", markersize=6, color=color, markeredgecolor="white")
