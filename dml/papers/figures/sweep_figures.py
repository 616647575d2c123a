"""The papers' figures: the trainings that they are drawn from, and the numbers of the finished runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml.ops.errors import InputError
from dml.ops.filesystem.plain_text import parse_yaml
from dml.papers.tables.paper_tables import REFERENCE, Training
from dml.run.config_folders import quote

if TYPE_CHECKING:
    from dml.papers.plans import Plan, PlannedRun  # its libraries take seconds, which a listing needn't wait for

PLANE_MAP = "plane/ap"
"""The mAP of two-dimensional embeddings that aren't normalized; `dml.papers.figures.drawings` computes it."""


@dataclass(frozen=True)
class Plot:
    """One plot of a figure: a curve for each metric, or a scatter plot for each point.

    Args:
        name: name of the plot in reference/figures.yaml.
        axis: label of the horizontal axis, along which the points stand.
        curves: {label: metric in metrics.json}.
        points: {value of the parameter, or name of the loss: the training at this point}.
    """

    name: str
    axis: str
    curves: Mapping[str, str]
    points: Mapping[str, Training]


@dataclass(frozen=True)
class Value:
    """A number of one finished run, a fraction."""

    plot: str
    point: str
    curve: str
    seed: int
    value: float


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, in one of its settings.

    Args:
        name: name of the figure in reference/figures.yaml, and of the file that it is drawn to.
        title: title above the figure.
        dataset: name of the data set in the title.
        plots: plots of the figure, from left to right.
    """

    name: str
    title: str
    dataset: str
    plots: tuple[Plot, ...]

    def list_runs(self, plan: "Plan") -> "list[PlannedRun]":
        """List all runs that the figure takes, each once; the runs of one seed come before those of the next."""
        return plan.list_all_runs(training for plot in self.plots for training in plot.points.values())

    def iterate_finished_runs(self, plan: "Plan") -> "Iterator[tuple[Plot, str, PlannedRun]]":
        """Yield the finished runs, each with the plot and the point that it belongs to."""
        for plot in self.plots:
            for point, training in plot.points.items():
                yield from ((plot, point, run) for run in plan.list_runs(training) if run.is_finished)


def find_figures(names: Sequence[str] = (), data: Path | None = None) -> list[Figure]:
    """Find trained figures by name, each in the paper's setting if its data is there, else in the small setting.

    Args:
        names: names in reference/figures.yaml; none for all trained figures.
        data: folder that holds the folders of the data sets; None for the small settings, which need no data.

    Raises:
        InputError: if the folder doesn't exist.
    """
    if data is not None and not data.is_dir():
        raise InputError(f"--data {data}: no such folder; without it the figures are drawn on data that is here")
    names = names or [name for name, entry in read_entries().items() if "parts" in entry]
    return [_read_figure(name, data) for name in names]


def read_values(figure: Figure, plan: "Plan") -> list[Value]:
    """Read the numbers that the figure's curves go through, from the metrics.json of the finished runs.

    Raises:
        InputError: if a finished run lacks a metric.
    """
    values = []
    for plot, point, run in figure.iterate_finished_runs(plan):
        for label, metric in plot.curves.items():
            if metric == PLANE_MAP:
                continue
            if metric not in run.metrics:
                raise InputError(f"{run.folder / 'metrics.json'}: no {metric}, which figure {figure.name} wants")
            values.append(Value(plot.name, point, label, run.seed, run.metrics[metric]))
    return values


def csv_rows(figure: Figure, values: Sequence[Value]) -> list[list[object]]:
    """Return the rows of a CSV file of the numbers in full precision, the header first."""
    header: list[object] = ["figure", "data", "part", "point", "curve", "seed", "value"]
    rows = (
        [figure.name, figure.dataset, value.plot, value.point, value.curve, value.seed, value.value] for value in values
    )
    return [header, *rows]


@cache
def read_entries() -> dict[str, Any]:
    """Read reference/figures.yaml -> {name: figure}."""
    entries: dict[str, Any] = parse_yaml((REFERENCE / "figures.yaml").read_text(encoding="utf-8"))
    return entries


def _read_figure(name: str, data: Path | None) -> Figure:
    entry = read_entries()[name]
    setting_name, root_override = _find_setting(entry["paper"].get("folders"), data)
    setting = entry[setting_name]
    plots = []
    for plot_name, plot in entry["parts"].items():
        points = {
            str(point): Training.parse(setting["run"].format(value)).extended(root_override)
            for point, value in plot["points"].items()
        }
        plots.append(Plot(plot_name, plot["axis"], plot["curves"][setting_name], points))
    return Figure(name, entry["title"], setting["data"], tuple(plots))


def _find_setting(folders: Sequence[str] | None, data: Path | None) -> tuple[str, tuple[str, ...]]:
    """Find the setting to draw a figure in: the paper's if its data is there.

    Args:
        folders: folders of which any may hold the paper's data; None if the plan finds the data by itself.
        data: folder that holds these folders.

    Returns:
        The setting's name, and the override that names the folder of the data, if one is needed.
    """
    if data is None:
        return "small", ()
    if folders is None:
        return "paper", ()
    for folder in folders:
        if (data / folder).is_dir():
            return "paper", (f"dataset.root={quote(data / folder)}",)
    return "small", ()
