"""Drawings of the papers' figures from the results of a study, or from its runs; the same runs give the same bytes."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dml.commands.error_lines import print_line
from dml.data.table import UNKNOWN
from dml.evaluation.per_query import QueryTable, Strings, choose_lowest
from dml.inference.loading import load
from dml.losses.nra import NonlinearRankApproximationLoss
from dml.metrics.binary import average_precision, positive_ranks
from dml.report.embedding_map import FEWEST, embedding_map
from dml.report.pictures import choose_queries, draw_queries
from dml.report.run import ReportedRun, read_run
from dml.run import builders
from dml.run.settings import Settings, read_settings
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import markdown_table
from dml.studies.charts import new_chart
from dml.studies.experiments import compose
from dml.studies.results import Results
from dml.studies.runs import Plan, Run
from dml.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # importing matplotlib is slow

PLANE_MAP = "plane/ap"
"""The mAP of two-dimensional embeddings that aren't normalized; it isn't in metrics.json, but computed here."""

MAX_POINTS = 5000
"""The most embeddings in a scatter plot: "5 000 randomly chosen feature vectors of the test set" (NRA, Fig. 4)."""

QUERIES_PER_BLOCK = 500
"""Queries whose distances are in memory at a time."""

CELLS, THUMBNAIL = 50, 64
"""Cells across a map of pictures, and the largest side of a picture in pixels."""

MARKERS, DPI = "osD^vP", 110


class Value(NamedTuple):
    """A number of one finished run, a fraction; ``plot`` is a condition of the study, and ``point`` a row."""

    plot: str
    point: str
    curve: str
    seed: int
    value: float


@dataclass(frozen=True)
class PlaneEmbeddings:
    """Embeddings in the plane.

    Args:
        embeddings: points of shape (N, 2).
        classes: (N,) names of the points' classes, which color the points.
        title: title above the plot.
        read: function that reads the picture of a point -> (3, H, W) uint8, which is drawn in place of a dot; None for
            dots.
    """

    embeddings: NDArray[Any]
    classes: NDArray[np.str_]
    title: str
    read: Callable[[int], Tensor] | None = None


def collect_values(study: Study, results: Results, plan: Plan) -> tuple[list[Value], dict[str, PlaneEmbeddings]]:
    """Collect the numbers that a figure shows, and the embeddings of its panels, if it shows the plane."""
    if any(PLANE_MAP in plot["curves"].values() for plot in study.content["parts"].values()):
        planes, values = collect_planes(study, plan)
        return values, planes
    return read_values(study, results), {}


def draw_figure(study: Study, results: Results, plan: Plan, path: Path) -> list[Value]:
    """Draw a figure into a PNG file -> the numbers that it shows."""
    values, planes = collect_values(study, results, plan)
    parts, data = study.content["parts"], study.content["data"]
    departures = f", with {', '.join(plan.departures)}" if plan.departures else ""
    title = f"{study.content['title']}{departures}, on {data}"
    if planes:
        draw_planes(title, {cell.row: planes.get(cell.row) for cell in study.cells}, path, legend_title="digit")
        return values
    has_transfer = study.content.get("draws") == "transfer"
    panels = len(parts) + 2 * has_transfer
    with new_chart(path, size=(4.6 * panels, 4.0), dpi=DPI, title=title) as figure:
        axes_row = figure.subplots(1, panels, squeeze=False)[0]
        if has_transfer:
            _draw_transfer(axes_row[0], axes_row[1], map(float, next(iter(parts.values()))["points"]))
        for letter, (name, part), axes in zip("abcdef", parts.items(), axes_row[panels - len(parts) :], strict=False):
            axes.set_title(f"Recall on {data}" if has_transfer else f"({letter})")
            _draw_curves(axes, part, [value for value in values if value.plot == name])
    return values


def read_values(study: Study, results: Results) -> list[Value]:
    """Read the numbers that the curves of a figure go through.

    Raises:
        InputError: if a finished run lacks a metric.
    """
    values = []
    for cell in study.cells:
        row = results.find_row(cell)
        for run in row.runs if row else ():
            for curve, metric in study.content["parts"][cell.condition]["curves"].items():
                if metric not in run.metrics:
                    raise InputError(f"{study.name}: a run of {cell.row} has no {metric}, which the figure wants")
                values.append(Value(cell.condition, cell.row, curve, run.seed, run.metrics[metric]))
    return values


def csv_rows(study: Study, values: Sequence[Value]) -> list[list[object]]:
    """Return the rows of a CSV file of the numbers in full precision, the header first."""
    rows = ([study.name, study.content["data"], *value] for value in values)
    return [["figure", "data", "part", "point", "curve", "seed", "value"], *rows]


def render_values(values: Sequence[Value]) -> str:
    """Render the numbers of a figure in percent, as means over the seeds."""
    by_point: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for value in values:
        by_point[value[:3]].append(100 * value.value)
    lines = [[*point, str(len(percents)), f"{mean(percents):.1f}"] for point, percents in by_point.items()]
    return markdown_table(["part", "point", "curve", "runs", "mean"], lines, right=(3, 4))


def draw_planes(
    title: str,
    planes: Mapping[str, PlaneEmbeddings | None],
    path: Path,
    *,
    legend_title: str = "",
    size: tuple[float, float] = (4.5, 4.2),
) -> None:
    """Draw embeddings in the plane, two panels a row: NRA's Fig. 4, HAPPIER's Fig. 5, RLL's Fig. 6, maps of LNS.

    Args:
        title: title above the panels.
        planes: {name of the panel: embeddings to draw}; a panel without embeddings says that no run is done.
        path: file to write.
        legend_title: title of the legend, such as "digit" for classes that are digits; "" for no legend.
        size: width and height of a panel in inches.
    """
    names = sorted({name for plane in planes.values() if plane for name in plane.classes.tolist()})
    columns, rows = min(2, len(planes)), -(-len(planes) // 2)
    with new_chart(path, size=(size[0] * columns, size[1] * rows), dpi=DPI, title=title) as figure:
        panels, last_drawn = figure.subplots(rows, columns, squeeze=False).flat, None
        for (name, plane), axes in zip(planes.items(), panels, strict=False):
            axes.set_title(plane.title if plane else name, fontsize="medium")
            if plane and plane.read:
                _draw_pictures(axes, plane.embeddings, plane.read)
                continue
            axes.set_aspect("equal", adjustable="datalim")
            axes.tick_params(labelsize="x-small")
            if plane is None:
                _write_no_run(axes)
            else:
                last_drawn = axes
                _draw_scatter(axes, plane, names)
        for axes in panels:  # an odd number of panels leaves one empty
            axes.set_axis_off()
        if legend_title and last_drawn is not None:
            handles, labels = last_drawn.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside right center", title=legend_title, markerscale=2)


def collect_planes(study: Study, plan: Plan) -> tuple[dict[str, PlaneEmbeddings], list[Value]]:
    """Embed the test images with each finished run -> the embeddings of each row's first run, the mAP of all runs."""
    first_runs: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
    values = []
    for cell in study.cells:
        for run in plan.list_runs(cell.training):
            if run.is_finished:
                embeddings, labels = embed_test_images(run)
                values.append(Value(cell.condition, cell.row, "mAP", run.seed, euclidean_map(embeddings, labels)))
                first_runs.setdefault(cell.row, (embeddings, labels))
    return {
        row: PlaneEmbeddings(places, labels.astype(str), _format_title(row, values))
        for row, (places, labels) in first_runs.items()
    }, values


def embed_test_images(run: Run) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Embed test images of a finished run, at most `MAX_POINTS`, as its loss sees them -> (N, 2), labels (N,)."""
    table = builders.build_table(read_settings(compose(run.training), Settings)).select_evaluated("test")
    table = table.take(choose_queries(len(table), min(MAX_POINTS, len(table))))
    embedder, parts = load(RunFolder(run.folder).last_checkpoint), []
    with torch.inference_mode():
        for paths in np.array_split(table.paths, -(-len(table) // QUERIES_PER_BLOCK)):
            images = torch.stack([embedder.preprocess(path) for path in paths.tolist()])
            (embeddings,) = embedder.model(images.to(embedder.device)).values()
            parts.append(embeddings.cpu().numpy())
    return np.concatenate(parts), table.labels[:, 0]


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


def _draw_transfer(left: "Axes", right: "Axes", alphas: Iterable[float]) -> None:
    """Draw NRA's transfer function and its part of the loss: NRA's Fig. 3, left and middle."""
    ranks = torch.linspace(0, 1, 501, dtype=torch.float64)
    for alpha in alphas:
        loss = NonlinearRankApproximationLoss(alpha)
        weight = loss._transfer(ranks)
        left.plot(ranks.numpy(), weight.numpy(), label=f"α = {alpha:g}")
        right.plot(ranks.numpy(), -(1 - weight + loss.epsilon).log().numpy())
    left.set(title="Transfer function", xlabel="r", ylabel="w(r; α)")
    left.legend(fontsize="small")
    right.set(title="Loss component", xlabel="r", ylabel="−log(s + ε), s = 1 − w(r; α)")


def _draw_curves(axes: "Axes", plot: Mapping[str, Any], values: Sequence[Value]) -> None:
    """Draw curves in percent: a line through the means over the seeds, and dots for the runs of several seeds."""
    axes.set(xlabel=plot["axis"], ylabel="%", xticks=[float(point) for point in plot["points"]])
    axes.grid(alpha=0.3)
    for number, curve, marker in zip(count(), plot["curves"], MARKERS, strict=False):
        percents: dict[float, list[float]] = defaultdict(list)
        for value in values:
            if value.curve == curve:
                percents[float(value.point)].append(100 * value.value)
        if percents:
            means = [mean(runs) for runs in percents.values()]
            axes.plot([*percents], means, f"C{number}{marker}-", ms=5, label=curve)
            dots = [(x, y) for x, runs in percents.items() for y in runs if len(runs) > 1]
            axes.plot(*zip(*dots, strict=True) if dots else ([], []), f"C{number}.", ms=4, alpha=0.5)
    if axes.has_data():
        below_plot = (0.5, -0.13)
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=below_plot, ncols=len(plot["curves"]))
    else:
        _write_no_run(axes)


def _draw_scatter(axes: "Axes", plane: PlaneEmbeddings, names: Sequence[str]) -> None:
    size = 12 if len(plane.embeddings) < 1000 else 3
    for number, name in enumerate(names):
        x, y = plane.embeddings[plane.classes == name].T
        marker = MARKERS[number // 10 % len(MARKERS)]  # there are ten colors
        axes.scatter(x, y, s=size, color=f"C{number % 10}", marker=marker, linewidths=0, label=name)


def _draw_pictures(axes: "Axes", places: NDArray[Any], read: Callable[[int], Tensor]) -> None:
    """Draw pictures at their places on a grid; of those in one cell, the first is drawn."""
    side = float(np.ptp(places, axis=0).max()) / CELLS or 1.0
    cells, rows = np.unique(np.rint(places / side), axis=0, return_index=True)
    for (x, y), row in zip((cells * side).tolist(), rows.tolist(), strict=True):
        picture = Image.fromarray(read(row).permute(1, 2, 0).contiguous().numpy())
        picture.thumbnail((THUMBNAIL, THUMBNAIL))
        width, height = (0.48 * side * length / max(picture.size) for length in picture.size)
        axes.imshow(picture, extent=(x - width, x + width, y - height, y + height))
    (left, bottom), (right, top) = side * (cells.min(axis=0) - 1), side * (cells.max(axis=0) + 1)
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect=1)
    axes.title.set_fontsize(20)
    axes.set_axis_off()


def _write_no_run(axes: "Axes") -> None:
    axes.text(0.5, 0.5, "no run is done", ha="center", va="center", transform=axes.transAxes)


def _format_title(row: str, values: Sequence[Value]) -> str:
    """Return a row's name with the mAP of its first run, and below it the mean of several runs."""
    percents = [100 * value.value for value in values if value.point == row]
    mean_line = f"\nmean of {len(percents)} runs: {mean(percents):.1f} %" if len(percents) > 1 else ""
    return f"{row}, mAP {percents[0]:.1f} %{mean_line}"


QUERIES_PER_SHEET = 8
"""The largest number of queries on a sheet."""


def draw_run_figures(figures: Mapping[str, Mapping[str, Any]], folders: Sequence[Path], images: Path) -> None:
    """Draw figures, {name: entry of reference/figures.yaml}, of runs, and print the path of each picture.

    Raises:
        InputError: if a figure can't be drawn of these runs.
    """
    runs = {folder: read_run(folder) for folder in folders}
    images.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = images / f"{name}.png"
        if figure["draws"] == "sheet":
            _draw_sheet(name, figure, [*runs.values()], path)
        elif figure["draws"] == "map":
            planes = {str(folder): _place_images(run) for folder, run in runs.items()}
            draw_planes(figure["title"], planes, path, size=(15, 15))
        else:
            planes = {str(folder): _place_class_means(run, folder) for folder, run in runs.items()}
            draw_planes(figure["title"], planes, path, legend_title="coarsest level")
        print_line(f"{path}: {figure['title']}, {figure['shows']}")


def _draw_sheet(name: str, figure: Mapping[str, Any], runs: Sequence[ReportedRun], path: Path) -> None:
    """Draw random queries, or those for which the better run of two finds most more, at most one of each class."""
    first, better, neighbors = runs[0].queries, figure.get("better"), figure["neighbors"]
    levels = slice(None if figure.get("graded") else 1)
    if better and len(runs) != 2:
        raise InputError(f"{name}: shows what one of two runs finds and the other doesn't; {len(runs)} given")
    tables = [(run.name, _align_queries(runs[0], run).queries) for run in runs]
    if better is None:
        queries = choose_queries(len(first), min(QUERIES_PER_SHEET, len(first))).tolist()
    else:
        first_shares, second_shares = (table.find_shared_levels(neighbors, levels).mean(axis=1) for _, table in tables)
        gains = first_shares - second_shares if better == "second" else second_shares - first_shares
        queries = choose_lowest(np.where(gains > 0, -gains, np.nan), first.labels[:, 0], QUERIES_PER_SHEET)
        if not queries:
            raise InputError(f"{name}: the {better} run finds more for no query among its {neighbors} nearest images")
    draw_queries(tables, queries, path, runs[0].read_picture, neighbors=neighbors, levels=levels)


def _place_images(run: ReportedRun) -> PlaneEmbeddings:
    """Return the test images at their places on the map of a run's report."""
    table = run.queries
    if table.positions is None:
        raise InputError(f"{run.name}: no map in its report; dml evaluate with evaluation.report.map=true makes one")
    rows = np.flatnonzero(~np.isnan(table.positions[:, 0]))
    names = np.array([table.class_name(label) for label in table.labels[rows, 0].tolist()])
    paths, title = table.paths[rows], f"{run.title}, {run.name}"
    return PlaneEmbeddings(table.positions[rows], names, title, lambda row: run.read_picture(paths[row]))


def _place_class_means(run: ReportedRun, folder: Path) -> PlaneEmbeddings:
    """Embed the queries of a run with its model, and place the mean embeddings of their classes in the plane."""
    table = run.queries
    classes, rows, numbers = np.unique(table.labels[:, 0], return_index=True, return_inverse=True)
    if len(table.levels) == 1 or len(classes) < FEWEST:
        raise InputError(
            f"{run.name}: {len(classes)} classes of {', '.join(table.levels)}; at least {FEWEST} are drawn, colored by "
            "a coarser level"
        )
    embeddings = load(folder).embed([os.path.join(run.start_folder, image) for image in table.paths.tolist()])
    sums = np.zeros((len(classes), embeddings.shape[1]))
    np.add.at(sums, numbers, embeddings)
    places = embedding_map(sums / np.bincount(numbers)[:, None])
    is_drawn = ~np.isnan(places[:, 0])
    names = np.array([table.class_name(label, -1) for label in table.labels[rows, -1].tolist()])
    return PlaneEmbeddings(places[is_drawn], names[is_drawn], f"{run.title}\n{run.name}")


def _align_queries(a: ReportedRun, b: ReportedRun) -> ReportedRun:
    """Return run B with the rows of its queries in the order of run A, and with the paths of run A.

    Images are the same if they have the same path below the folder that holds all queries, because copies of a data
    set may lie in different folders. Classes are the same if they have the same name, because other training classes
    shift their numbers.

    Raises:
        InputError: if the runs were tested on different queries, or on the same ones with different classes.
    """
    queries_a, queries_b = a.queries, _renumber_classes(a.queries, b.queries)
    runs = f"{a.name} and {b.name}"
    if len(queries_a) != len(queries_b):
        raise InputError(f"{runs}: different queries, {len(queries_a):,} and {len(queries_b):,}")
    (root_a, keys_a), (root_b, keys_b) = _split_root(queries_a.paths), _split_root(queries_b.paths)
    row_by_key = {key: row for row, key in enumerate(keys_b)}
    order = np.array([row_by_key.get(key, -1) for key in keys_a])
    if (order < 0).any():
        raise InputError(f"{runs}: different queries, {queries_a.paths[int(np.argmin(order))]} is in the first alone")
    if queries_a.levels != queries_b.levels or not np.array_equal(queries_a.labels, queries_b.labels[order]):
        raise InputError(f"{runs}: different labels of the same queries")
    moved_paths = {
        path: root_a + path.removeprefix(root_b) if path.startswith(root_b) else path
        for path in queries_b.neighbors.ravel().tolist()
    }
    aligned = replace(
        queries_b,
        paths=queries_a.paths,
        labels=queries_a.labels,
        metrics={name: values[order] for name, values in queries_b.metrics.items()},
        neighbors=np.vectorize(moved_paths.__getitem__, otypes=[object])(queries_b.neighbors[order]),
        neighbor_labels=queries_b.neighbor_labels[order],
        similarities=queries_b.similarities[order],
        positions=None,
    )
    return replace(b, queries=aligned)


def _renumber_classes(a: QueryTable, b: QueryTable) -> QueryTable:
    """Return table B with the class numbers of table A, matched by name; classes that A lacks follow those of A.

    A level keeps its numbers if a name stands twice in it, and so do all levels if a table has no names.
    """
    if a.levels != b.levels or not (a.names and b.names):
        return b
    labels, neighbor_labels, names = b.labels.copy(), b.neighbor_labels.copy(), list(b.names)
    for level, (names_a, names_b) in enumerate(zip(a.names, b.names, strict=True)):
        if len({*names_a}) < len(names_a) or len({*names_b}) < len(names_b):
            continue
        names[level] = tuple(dict.fromkeys([*names_a, *names_b]))
        number_by_name = {name: number for number, name in enumerate(names[level])}
        numbers = np.array([*map(number_by_name.__getitem__, names_b), UNKNOWN])  # UNKNOWN, -1, takes the last
        labels[:, level] = numbers[labels[:, level]]
        neighbor_labels[:, :, level] = numbers[neighbor_labels[:, :, level]]
    return replace(b, labels=labels, neighbor_labels=neighbor_labels, names=tuple(names))


def _split_root(paths: Strings) -> tuple[str, list[tuple[str, int]]]:
    """Return the folder that holds all paths, and a key for each path.

    The key is the path below the folder, and how often the same path came before: a query of several lists has several
    rows.
    """
    listed = paths.tolist()
    root = os.path.join(os.path.commonpath([os.path.dirname(path) for path in listed]), "")
    counts: Counter[str] = Counter()
    keys = []
    for path in listed:
        keys.append((path.removeprefix(root), counts[path]))
        counts[path] += 1
    return root, keys
