"""Drawings of the papers' figures from finished runs; the same runs give the same bytes."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from torch import Tensor

from dml.evaluation.sheets.pictures import choose_queries
from dml.losses.nra import NonlinearRankApproximationLoss
from dml.metrics.binary import average_precision, positive_ranks
from dml.models.recurrent import AnyModel
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.charts import new_chart
from dml.papers.experiments import compose
from dml.papers.figures.sweep_figures import PLANE_MAP, Figure, Plot, Value, read_values
from dml.papers.plans import Plan, PlannedRun
from dml.run import builders, loop
from dml.training.checkpointing.checkpoints import load_model
from dml.training.embedders import Embedded, Embedder

MAX_POINTS = 5000
"""The most embeddings in a scatter plot: "5 000 randomly chosen feature vectors of the test set" (NRA, Fig. 4)."""

QUERIES_PER_BLOCK = 500
"""Queries whose distances are in memory at a time."""

MARKERS = "osD^vP"


@dataclass(frozen=True)
class PlaneEmbeddings:
    """Embeddings in the plane.

    Args:
        embeddings: points of shape (N, 2).
        labels: (N,) labels, which color the points.
        title: title above the scatter plot.
    """

    embeddings: NDArray[Any]
    labels: NDArray[np.int64]
    title: str


def draw_figure(figure: Figure, plan: Plan, folder: Path) -> list[Value]:
    """Draw a figure into ``folder``/NAME.png -> the numbers that it shows."""
    path = folder / f"{plan.name_results(figure.name)}.png"
    if any(PLANE_MAP in plot.curves.values() for plot in figure.plots):
        embeddings, values = collect_plane_embeddings(figure, plan)
        draw_scatter_plots(figure, embeddings, path)
        return values
    values = read_values(figure, plan)
    (draw_transfer if figure.name == "nra_3" else draw_sweeps)(figure, values, path)
    return values


def draw_sweeps(figure: Figure, values: Sequence[Value], path: Path) -> None:
    """Draw the plots of a figure side by side: HAPPIER's Fig. 4."""

    def fill(canvas: Canvas) -> None:
        row = canvas.subplots(1, len(figure.plots), squeeze=False)[0]
        for letter, plot, axes in zip("abcdef", figure.plots, row, strict=False):
            _draw_curves(axes, plot, values, f"({letter})")

    _write(fill, figure, path, size=(4.6 * len(figure.plots), 4.0))


def draw_transfer(figure: Figure, values: Sequence[Value], path: Path) -> None:
    """Draw NRA's transfer function, its part of the loss, and the recall that it gives: NRA's Fig. 3."""

    def fill(canvas: Canvas) -> None:
        left, center, right = canvas.subplots(1, 3)
        ranks = torch.linspace(0, 1, 501, dtype=torch.float64)
        (plot,) = figure.plots
        for alpha in map(float, plot.points):
            loss = NonlinearRankApproximationLoss(alpha)
            weight = loss._transfer(ranks)
            left.plot(ranks.numpy(), weight.numpy(), label=f"α = {alpha:g}")
            center.plot(ranks.numpy(), -(1 - weight + loss.epsilon).log().numpy())
        left.set(title="Transfer function", xlabel="r", ylabel="w(r; α)")
        left.legend(fontsize="small")
        center.set(title="Loss component", xlabel="r", ylabel="−log(s + ε), s = 1 − w(r; α)")
        _draw_curves(right, plot, values, f"Recall on {figure.dataset}")

    _write(fill, figure, path, size=(13.0, 4.0))


def draw_scatter_plots(figure: Figure, embeddings: Mapping[str, PlaneEmbeddings], path: Path) -> None:
    """Draw a scatter plot for each point of a figure, colored by class: NRA's Fig. 4.

    Args:
        figure: figure with one plot.
        embeddings: {point: embeddings to draw}; the panel of another point says that no run is done.
        path: file to write.
    """
    (plot,) = figure.plots

    def fill(canvas: Canvas) -> None:
        panels = canvas.subplots(2, -(-len(plot.points) // 2), squeeze=False).flat
        last_drawn = None
        for axes, point in zip(panels, plot.points, strict=False):
            axes.set_aspect("equal", adjustable="datalim")
            axes.tick_params(labelsize="x-small")
            if plane := embeddings.get(point):
                last_drawn = axes
                _draw_scatter(axes, plane)
            else:
                axes.set_title(point, fontsize="medium")
                _write_no_run(axes)
        if last_drawn is not None:
            handles, labels = last_drawn.get_legend_handles_labels()
            canvas.legend(handles, labels, loc="outside right center", title="digit", markerscale=2)

    _write(fill, figure, path, size=(9.0, 8.4))


def collect_plane_embeddings(figure: Figure, plan: Plan) -> tuple[dict[str, PlaneEmbeddings], list[Value]]:
    """Embed the test images with each finished run -> the embeddings of each point's first run, the mAP of all runs."""
    first_runs: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
    values = []
    for plot, point, run in figure.iterate_finished_runs(plan):
        embeddings, labels = embed_test_images(run)
        values.append(Value(plot.name, point, "mAP", run.seed, euclidean_map(embeddings, labels)))
        first_runs.setdefault(point, (embeddings, labels))
    return {point: PlaneEmbeddings(*arrays, _title(point, values)) for point, arrays in first_runs.items()}, values


def embed_test_images(run: PlannedRun) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Embed the test images of a finished run, at most `MAX_POINTS`, drawn with seed 0 -> (N, 2), labels (N,)."""
    config = compose(run.training)
    images = builders.build_data(config, builders.build_table(config))
    model = builders.build_model(config)
    load_model(model, RunFolder(run.folder).last_checkpoint)
    embedder = UnnormalizedEmbedder(model)
    trainer = loop.build_trainer(config, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.test(embedder, images, verbose=False)
    (embeddings,) = embedder.embedded.embeddings.values()
    labels = images.table.select_evaluated("test").labels[embedder.embedded.rows.numpy(), 0]
    rows = choose_queries(len(labels), min(MAX_POINTS, len(labels)))
    return embeddings.numpy()[rows], labels[rows]


def euclidean_map(embeddings: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Compute the mean average precision of embeddings (N, D) that are ranked by Euclidean distance, not normalized.

    Each item is the query once, and the whole ranking of the other items counts; ties stand in their order. A query
    that is alone in its class doesn't count.
    """
    rows, classes = torch.from_numpy(embeddings).double(), torch.from_numpy(labels)
    precisions = []
    for start in range(0, len(rows), QUERIES_PER_BLOCK):
        queries = torch.arange(start, min(start + QUERIES_PER_BLOCK, len(rows)))
        distances = torch.cdist(rows[queries], rows, compute_mode="donot_use_mm_for_euclid_dist")
        distances[torch.arange(len(queries)), queries] = torch.inf  # the query comes last, and is cut off
        order = distances.argsort(dim=1, stable=True)[:, :-1]
        precisions.append(average_precision(positive_ranks(classes[order] == classes[queries][:, None])))
    return float(torch.cat(precisions).nanmean())


class UnnormalizedEmbedder(Embedder):
    """Embeds images as the model's loss sees them; an evaluation L2-normalizes the embeddings instead."""

    def __init__(self, model: AnyModel) -> None:
        super().__init__()
        self.model = model

    def embed_images(self, images: Tensor) -> dict[str, Tensor]:
        """Embed images (B, 3, H, W) -> (B, D) for each head."""
        embeddings: dict[str, Tensor] = self.model(images)
        return embeddings

    def finalize(self, split: Embedded) -> Embedded:
        """Return the embeddings of a whole split without a change."""
        return split


def _draw_curves(axes: Axes, plot: Plot, values: Sequence[Value], title: str) -> None:
    """Draw curves in percent: a line through the means over the seeds, and dots for the runs of several seeds."""
    axes.set(title=title, xlabel=plot.axis, ylabel="%", xticks=[float(point) for point in plot.points])
    axes.grid(alpha=0.3)
    for number, label, marker in zip(count(), plot.curves, MARKERS, strict=False):
        percents: dict[float, list[float]] = defaultdict(list)
        for value in values:
            if (value.plot, value.curve) == (plot.name, label):
                percents[float(value.point)].append(100 * value.value)
        if percents:
            means = [mean(runs) for runs in percents.values()]
            axes.plot([*percents], means, f"C{number}{marker}-", ms=5, label=label)
            dots = [(x, y) for x, runs in percents.items() for y in runs if len(runs) > 1]
            axes.plot(*zip(*dots, strict=True) if dots else ([], []), f"C{number}.", ms=4, alpha=0.5)
    if axes.has_data():
        below_plot = (0.5, -0.13)
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=below_plot, ncols=len(plot.curves))
    else:
        _write_no_run(axes)


def _draw_scatter(axes: Axes, plane: PlaneEmbeddings) -> None:
    axes.set_title(plane.title, fontsize="medium")
    size = 12 if len(plane.embeddings) < 1000 else 3
    for label in np.unique(plane.labels).tolist():
        x, y = plane.embeddings[plane.labels == label].T
        axes.scatter(x, y, s=size, color=f"C{label % 10}", linewidths=0, label=str(label))


def _write_no_run(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no run is done", ha="center", va="center", transform=axes.transAxes)


def _title(point: str, values: Sequence[Value]) -> str:
    """Return a point's name with the mAP of its first run, and below it the mean of several runs."""
    percents = [100 * value.value for value in values if value.point == point]
    mean_line = f"\nmean of {len(percents)} runs: {mean(percents):.1f} %" if len(percents) > 1 else ""
    return f"{point}, mAP {percents[0]:.1f} %{mean_line}"


def _write(fill: Callable[[Canvas], None], figure: Figure, path: Path, *, size: tuple[float, float]) -> None:
    with new_chart(path, size=size, dpi=110) as canvas:
        canvas.suptitle(f"{figure.title}, on {figure.dataset}")
        fill(canvas)
