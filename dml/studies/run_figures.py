"""The papers' pictures of trained models, drawn of any finished runs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dml.commands.error_lines import print_line
from dml.evaluation.per_query import choose_lowest
from dml.inference.loading import load
from dml.report.embedding_map import FEWEST, embedding_map
from dml.report.pictures import choose_queries, draw_queries
from dml.report.run import ReportedRun, read_run
from dml.report.side_by_side import align_queries
from dml.runtime.errors import InputError
from dml.studies.figures import PlaneEmbeddings, draw_planes

QUERIES_PER_SHEET = 8
"""The largest number of queries on a sheet."""


def draw_run_figures(figures: Mapping[str, Mapping[str, Any]], folders: Sequence[Path], images: Path) -> None:
    """Draw figures of runs, and print the path of each picture.

    Args:
        figures: {name: entry of reference/figures.yaml}.
        folders: folders of the runs.
        images: folder of the pictures.

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
    tables = [(run.name, align_queries(runs[0], run).queries) for run in runs]
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
