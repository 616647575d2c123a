"""The papers' figures: which trainings they are drawn from, and the numbers of those that are done."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dml.ops.errors import InputError
from dml.run.cli import nearest
from dml.run.reproduce import Plan, Run
from dml.run.tables import REFERENCE, Training

PLANE = "plane/ap"
"""The mAP of two-dimensional embeddings as they are; `dml.run.drawings` computes it."""


@dataclass(frozen=True)
class Part:
    """One plot of a figure, or its pictures.

    Args:
        name: in reference/figures.yaml.
        axis: what its points are.
        curves: {label: metric in metrics.json}.
        points: what is trained, by the value of the parameter or the name of the loss.
    """

    name: str
    axis: str
    curves: Mapping[str, str]
    points: Mapping[str, Training]


@dataclass(frozen=True)
class Value:
    """A number of one finished run, a fraction."""

    part: str
    point: str
    curve: str
    seed: int
    value: float


@dataclass(frozen=True)
class Figure:
    """A figure in one of its settings.

    Args:
        name: in reference/figures.yaml, and of its file.
        title: of the picture.
        on: the data set's name in the picture.
        parts: of what it is drawn.
    """

    name: str
    title: str
    on: str
    parts: tuple[Part, ...]

    def runs(self, plan: Plan) -> list[Run]:
        """All runs that it takes, each once, a whole set of trainings a seed."""
        return plan.all_runs(training for part in self.parts for training in part.points.values())

    def done(self, plan: Plan) -> Iterator[tuple[Part, str, Run]]:
        """The finished runs, with the part and the point that they belong to."""
        for part in self.parts:
            for point, training in part.points.items():
                yield from ((part, point, run) for run in plan.runs(training) if run.done)


@cache
def _entries() -> dict[str, Any]:
    entries: dict[str, Any] = yaml.safe_load((REFERENCE / "figures.yaml").read_text(encoding="utf-8"))
    return entries


def chosen(names: Sequence[str] = (), data: Path | None = None) -> list[Figure]:
    """The figures of these names, or all, each in the paper's setting if that is possible.

    Args:
        names: of reference/figures.yaml.
        data: the folder that holds the data sets'; None: the settings that need none.

    Raises:
        InputError: if there is no figure of a name, or no such folder.
    """
    for name in names:
        if name not in _entries():
            raise InputError(f"{name}: no figure of this name{nearest(name, _entries())}")
    if data is not None and not data.is_dir():
        raise InputError(f"DATA={data}: no such folder; without DATA the figures are drawn on data that is here")
    return [_figure(name, data) for name in names or _entries()]


def _figure(name: str, data: Path | None) -> Figure:
    entry = _entries()[name]
    which, here = _setting(entry["paper"].get("folders"), data)
    setting = entry[which]
    parts = tuple(
        Part(
            part,
            own["axis"],
            own["curves"][which],
            {
                str(point): Training.parse(setting["run"].format(text)).extended(here)
                for point, text in own["points"].items()
            },
        )
        for part, own in entry["parts"].items()
    )
    return Figure(name, entry["title"], setting["data"], parts)


def _setting(folders: Sequence[str] | None, data: Path | None) -> tuple[str, tuple[str, ...]]:
    """The name of the setting, and the override that says where its data is, if it has to be said here."""
    if data is None:
        return "small", ()
    if folders is None:
        return "paper", ()
    for folder in folders:
        if (data / folder).is_dir():
            return "paper", (f"dataset.root={data / folder}",)
    return "small", ()


def values(figure: Figure, plan: Plan) -> list[Value]:
    """The numbers of the finished runs' metrics.json that the figure's curves are drawn through.

    Raises:
        InputError: if one of them lacks a metric.
    """
    found = []
    for part, point, run in figure.done(plan):
        for label, metric in part.curves.items():
            if metric == PLANE:
                continue
            if metric not in run.metrics:
                raise InputError(f"{run.folder / 'metrics.json'}: no {metric}, which figure {figure.name} wants")
            found.append(Value(part.name, point, label, run.seed, run.metrics[metric]))
    return found


def csv_lines(figure: Figure, found: Sequence[Value]) -> list[list[object]]:
    """The numbers in full, a header first."""
    header: list[object] = ["figure", "data", "part", "point", "curve", "seed", "value"]
    rows = ([figure.name, figure.on, own.part, own.point, own.curve, own.seed, own.value] for own in found)
    return [header, *rows]
