"""Charts of the papers' claims and figures, as PNG files: the same numbers give the same bytes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from dml.runtime.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # importing matplotlib is slow
    from matplotlib.figure import Figure

Points = dict[int, tuple[float, float, float]]
"""{number of a row: a difference, and the lower and the upper end of its interval}"""

COLORS = ("#e0a030", "#b3261e", "#2456a6", "#7d8790")
WIDTH, ROW_HEIGHT, MARGINS = 8.0, 0.26, 1.6
"""Inches of a chart of intervals, of a row, and of the space above and below the rows together."""
ROW_SHIFT = 0.2
"""Distance, in rows, between the points of two series."""


@contextmanager
def new_chart(path: Path, *, size: tuple[float, float], dpi: int = 150, title: str = "") -> Iterator["Figure"]:
    """Yield an empty figure, which is written to a PNG file after the body of the ``with`` statement.

    A missing folder is made. ``size`` is in inches, ``dpi`` in pixels per inch.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("default", after_reset=True):  # a user's matplotlibrc must not change the bytes
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        if title:
            figure.suptitle(title)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            figure.savefig(partial, format="png", metadata={"Software": None})


def add_difference_axes(figure: "Figure", names: Sequence[str], description: str) -> "Axes":
    """Add axes with a row for each name, at the heights 0, 1, 2, ... from the top, and a line at a difference of 0."""
    axes = figure.add_subplot()
    axes.axvline(0, color="#20262c", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(description)
    axes.grid(axis="x", color="#e3e6e9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return axes


def draw_intervals(names: Sequence[str], series: Mapping[str, Points], description: str, path: Path) -> None:
    """Draw a row for each name, the first at the top, with a point and an interval for each series that has the row."""
    with new_chart(path, size=(WIDTH, MARGINS + ROW_HEIGHT * len(names))) as figure:
        axes = add_difference_axes(figure, names, description)
        for place, ((name, points), color) in enumerate(zip(series.items(), cycle(COLORS), strict=False)):
            shift = ROW_SHIFT * (place - (len(series) - 1) / 2)
            centers, lows, highs = ([point[part] for point in points.values()] for part in range(3))
            below = [center - low for center, low in zip(centers, lows, strict=True)]
            above = [high - center for center, high in zip(centers, highs, strict=True)]
            heights = [row + shift for row in points]
            axes.errorbar(
                centers, heights, xerr=[below, above], fmt="o", markersize=3, linewidth=1, color=color, label=name
            )
        figure.legend(loc="outside upper center", ncols=len(series), frameon=False)
