"""Charts of the papers' claims and figures, as PNG files: the same numbers give the same bytes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dml.ops.filesystem.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # importing matplotlib is slow
    from matplotlib.figure import Figure


@contextmanager
def new_chart(path: Path, *, size: tuple[float, float], dpi: int = 150) -> Iterator["Figure"]:
    """Yield an empty figure, which is written to ``path`` after the body of the ``with`` statement.

    Args:
        path: PNG file to write; a missing folder is made.
        size: width and height in inches.
        dpi: pixels per inch.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("default", after_reset=True):  # a user's matplotlibrc must not change the bytes
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            figure.savefig(partial, format="png", metadata={"Software": None})


def add_difference_axes(figure: "Figure", names: Sequence[str], description: str) -> "Axes":
    """Add axes with a row for each name, the first at the top, and a line at a difference of 0.

    Args:
        figure: figure that the axes fill.
        names: names of the rows, whose heights are 0, 1, 2 and so on.
        description: text below the axis of the differences.
    """
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
