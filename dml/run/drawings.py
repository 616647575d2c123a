"""Draws the papers' figures of what their runs have left; the same runs give the same bytes."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from torch import Tensor

from dml.evaluation.pictures import choose_queries
from dml.losses.nra import NonlinearRankApproximationLoss
from dml.metrics.binary import average_precision, positive_ranks
from dml.ops.files import replacing
from dml.ops.run_folder import RunFolder
from dml.run import build, loop
from dml.run.experiments import compose
from dml.run.figures import PLANE, Figure, Part, Value, values
from dml.run.reproduce import Plan, Run
from dml.training.checkpoints import load_model
from dml.training.embedding import AnyModel, Embedded, Embedder

POINTS = 5000  # "5 000 randomly chosen feature vectors of the test set"
BLOCK = 500  # queries that are ranked at a time
MARKERS = "osD^vP"


@dataclass(frozen=True)
class Picture:
    """Embeddings in the plane.

    Args:
        places: (N, 2).
        labels: (N,), the colours.
        title: above it.
    """

    places: NDArray[Any]
    labels: NDArray[np.int64]
    title: str


def draw(figure: Figure, plan: Plan, folder: Path) -> list[Value]:
    """Writes ``folder``/NAME.png -> its numbers."""
    path = folder / f"{figure.name}.png"
    if any(PLANE in part.curves.values() for part in figure.parts):
        pictures, found = embedded(figure, plan)
        draw_pictures(figure, pictures, path)
        return found
    found = values(figure, plan)
    (draw_transfer if figure.name == "nra_3" else draw_sweeps)(figure, found, path)
    return found


def draw_sweeps(figure: Figure, found: Sequence[Value], path: Path) -> None:
    """A plot a part, side by side: HAPPIER's Fig. 4."""

    def fill(canvas: Canvas) -> None:
        axes = canvas.subplots(1, len(figure.parts), squeeze=False)[0]
        for name, part, own in zip("abcdef", figure.parts, axes, strict=False):
            _sweep(own, part, found, f"({name})")

    _write(fill, figure, path, size=(4.6 * len(figure.parts), 4.0))


def draw_transfer(figure: Figure, found: Sequence[Value], path: Path) -> None:
    """NRA's Fig. 3: its transfer function, the loss component of it, and the recall that it gives."""

    def fill(canvas: Canvas) -> None:
        left, centre, right = canvas.subplots(1, 3)
        ranks = torch.linspace(0, 1, 501, dtype=torch.float64)
        (part,) = figure.parts
        for alpha in map(float, part.points):
            loss = NonlinearRankApproximationLoss(alpha)
            weight = loss._transfer(ranks)
            left.plot(ranks.numpy(), weight.numpy(), label=f"α = {alpha:g}")
            centre.plot(ranks.numpy(), -(1 - weight + loss.epsilon).log().numpy())
        left.set(title="Transfer function", xlabel="r", ylabel="w(r; α)")
        left.legend(fontsize="small")
        centre.set(title="Loss component", xlabel="r", ylabel="−log(s + ε), s = 1 − w(r; α)")
        _sweep(right, part, found, f"Recall on {figure.on}")

    _write(fill, figure, path, size=(13.0, 4.0))


def _sweep(axes: Axes, part: Part, found: Sequence[Value], title: str) -> None:
    """A curve through the means over the seeds, and a dot for each of several runs; values in percent."""
    axes.set(title=title, xlabel=part.axis, ylabel="%", xticks=[float(point) for point in part.points])
    axes.grid(alpha=0.3)
    for number, label, marker in zip(count(), part.curves, MARKERS, strict=False):
        runs: dict[float, list[float]] = defaultdict(list)
        for own in found:
            if (own.part, own.curve) == (part.name, label):
                runs[float(own.point)].append(100 * own.value)
        if runs:
            axes.plot([*runs], [mean(own) for own in runs.values()], f"C{number}{marker}-", ms=5, label=label)
            dots = [(x, y) for x, own in runs.items() for y in own if len(own) > 1]
            axes.plot(*zip(*dots, strict=True) if dots else ([], []), f"C{number}.", ms=4, alpha=0.5)
    if axes.has_data():
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=len(part.curves))  # below
    else:
        axes.text(0.5, 0.5, "no run is done", ha="center", va="center", transform=axes.transAxes)


def embedded(figure: Figure, plan: Plan) -> tuple[dict[str, Picture], list[Value]]:
    """The picture of the first finished run of each point, and the mAP of all finished ones."""
    first: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
    found = []
    for part, point, run in figure.done(plan):
        places, labels = plane(run)
        found.append(Value(part.name, point, "mAP", run.seed, plane_map(places, labels)))
        first.setdefault(point, (places, labels))
    return {point: Picture(*own, _title(point, found)) for point, own in first.items()}, found


def _title(point: str, found: Sequence[Value]) -> str:
    own = [100 * value.value for value in found if value.point == point]
    over = f"\nmean of {len(own)} runs: {mean(own):.1f} %" if len(own) > 1 else ""
    return f"{point}, mAP {own[0]:.1f} %{over}"


def draw_pictures(figure: Figure, pictures: Mapping[str, Picture], path: Path) -> None:
    """A panel a point, its colours the classes: NRA's Fig. 4."""
    (part,) = figure.parts

    def fill(canvas: Canvas) -> None:
        panels = canvas.subplots(2, -(-len(part.points) // 2), squeeze=False).flat
        drawn = None
        for axes, point in zip(panels, part.points, strict=False):
            axes.set_aspect("equal", adjustable="datalim")
            axes.tick_params(labelsize="x-small")
            if picture := pictures.get(point):
                drawn = axes
                axes.set_title(picture.title, fontsize="medium")
                for label in np.unique(picture.labels).tolist():
                    rows = picture.places[picture.labels == label]
                    size = 12 if len(picture.places) < 1000 else 3
                    axes.scatter(*rows.T, s=size, color=f"C{label % 10}", linewidths=0, label=str(label))
            else:
                axes.set_title(point, fontsize="medium")
                axes.text(0.5, 0.5, "no run is done", ha="center", va="center", transform=axes.transAxes)
        if drawn is not None:
            canvas.legend(*drawn.get_legend_handles_labels(), loc="outside right center", title="digit", markerscale=2)

    _write(fill, figure, path, size=(9.0, 8.4))


class PlainEmbeddings(Embedder):
    """A model's embeddings as its loss sees them: what metrics.json judges is L2-normalised."""

    def __init__(self, model: AnyModel) -> None:
        super().__init__()
        self.model = model

    def of_images(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> each head's embeddings (B, D)."""
        found: dict[str, Tensor] = self.model(images)
        return found

    def of_split(self, parts: Embedded) -> dict[str, Tensor]:
        """The same."""
        return parts.embeddings


def plane(run: Run) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """A finished run's test embeddings (N, 2) and their labels (N,), at most `POINTS` of them, drawn with seed 0."""
    config = compose(run.training)
    images = build.data(config, build.table(config))
    model = build.model(config)
    load_model(model, RunFolder(run.folder).last_checkpoint)
    embedder = PlainEmbeddings(model)
    trainer = loop.trainer(config, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.test(embedder, images, verbose=False)
    (places,) = embedder.embedded.embeddings.values()
    labels = images.table.evaluated("test").labels[embedder.embedded.rows.numpy(), 0]
    rows = choose_queries(len(labels), min(POINTS, len(labels)))
    return places.numpy()[rows], labels[rows]


def plane_map(places: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """The mean average precision of (N, D) ranked by Euclidean distance, as they are; each is the query once.

    Over the whole ranking of the others; ties stand in their order. A query whose class has no other counts nothing.
    """
    rows, classes = torch.from_numpy(places).double(), torch.from_numpy(labels)
    found = []
    for start in range(0, len(rows), BLOCK):
        queries = torch.arange(start, min(start + BLOCK, len(rows)))
        distances = torch.cdist(rows[queries], rows, compute_mode="donot_use_mm_for_euclid_dist")
        distances[torch.arange(len(queries)), queries] = torch.inf  # itself comes last, and is left out
        order = distances.argsort(dim=1, stable=True)[:, :-1]
        found.append(average_precision(positive_ranks(classes[order] == classes[queries][:, None])))
    return float(torch.cat(found).nanmean())


def _write(fill: Callable[[Canvas], None], figure: Figure, path: Path, *, size: tuple[float, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with style.context("default", after_reset=True):  # whatever the user's matplotlibrc says
        canvas = Canvas(figsize=size, dpi=110, layout="constrained")
        canvas.suptitle(f"{figure.title}, on {figure.on}")
        fill(canvas)
        with replacing(path) as partial:
            canvas.savefig(partial, format="png", metadata={"Software": None})
