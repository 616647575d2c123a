"""The figure of a claim: each comparison's differences seed by seed, with their mean and its interval."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from dml.papers.charts import add_difference_axes, new_chart
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
    names = [str(outcome.comparison) for outcome in outcomes]
    with new_chart(path, size=(WIDTH, MARGINS + ROW_HEIGHT * len(outcomes))) as figure:
        axes = add_difference_axes(
            figure, names, "difference on the test classes, percent points (above 0: as claimed)"
        )
        for row, outcome in enumerate(outcomes):
            _draw_row(axes, row, outcome)


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
