"""The figure of a claim: its comparisons' differences, seed by seed, with their mean and its interval."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dml.ops.files import replacing
from dml.run.verdicts import Outcome, Verdict

COLORS = {
    Verdict.CONFIRMED: "#1b6e3c",
    Verdict.NOT_CONFIRMED: "#4a5560",
    Verdict.REVERSED: "#b3261e",
    Verdict.OPEN: "#8a929a",
}
WIDTH, ROW, MARGINS = 8.0, 0.42, 1.0  # inches; of the figure, of a comparison, above and below them
BELOW = 0.24  # rows, from the mean to the seeds' own dots


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Writes the figure to ``path``, a PNG: the same bytes for the same numbers.

    Args:
        outcomes: a row each, from above; one without a difference stays empty.
        path: in a folder that is made if it is missing.
    """
    figure = Figure(figsize=(WIDTH, MARGINS + ROW * len(outcomes)), dpi=150, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color="#20262c", linewidth=1)
    for row, outcome in enumerate(outcomes):
        _row(axes, row, outcome)
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


def _row(axes: Axes, row: int, outcome: Outcome) -> None:
    color, found = COLORS[outcome.verdict], outcome.interval
    if outcome.comparison.within:  # what the differences are to lie above, instead of 0
        axes.plot([-outcome.comparison.within] * 2, [row - 0.4, row + 0.4], color="#20262c", linewidth=1, linestyle=":")
    if found is None:
        return
    differences = list(outcome.differences.values())
    below = [row + BELOW] * len(differences)
    axes.plot(differences, below, "o", markersize=5, color=color, alpha=0.35, markeredgewidth=0)
    if found.runs > 1:
        axes.errorbar(found.mean, row, xerr=found.half_width, color=color, capsize=4, linewidth=1.6)
    axes.plot(found.mean, row, "D", markersize=6, color=color, markeredgecolor="white")
