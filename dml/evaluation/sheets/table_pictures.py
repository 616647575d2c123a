"""Pictures of the images of a table: queries with their neighbours, and some images of each class."""

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dml.data.image_files.images import read_image
from dml.data.image_files.limits import ImageLimits
from dml.data.prepared.prepared_files import replacing_file
from dml.data.table import SPLITS, ImageTable
from dml.evaluation.per_query import QueryTable
from dml.evaluation.sheets.pictures import COARSER, OTHER, QUERY, SAME, ReadPicture, draw_sheet
from dml.ops.filesystem.files import replacing


def draw_queries(
    tables: Sequence[tuple[str, QueryTable]],
    queries: Sequence[int],
    path: Path,
    read: ReadPicture,
    *,
    neighbors: int,
    levels: slice = slice(1),
) -> None:
    """Write a PNG of some queries and their nearest images in one ranking or in several.

    Args:
        tables: names, and rankings of the same queries.
        queries: rows of the queries in the tables.
        path: path of the PNG.
        read: function that reads pictures.
        neighbors: largest number of images beside each query.
        levels: levels whose classes an image may share with its query.
    """
    table = tables[0][1]
    names = table.levels[levels]
    relations = [SAME, *[COARSER] * (len(names) - 1), OTHER]
    legend = {SAME: f"same {names[0]}", COARSER: f"same {' or '.join(names[1:])}", OTHER: f"other {names[-1]}"}
    rows = []
    for query, (name, ranked) in itertools.product(queries, tables):
        shared = ranked.find_shared_levels(neighbors, levels)[query].tolist()
        class_name = table.class_name(int(table.labels[query, levels][0]), levels.start or 0)
        title = ", ".join(filter(None, (class_name, f"{shared.count(0)} of {len(shared)}", name)))
        images = zip(ranked.neighbors[query, :neighbors].tolist(), [relations[level] for level in shared], strict=True)
        rows.append((title, [(table.paths[query], QUERY), *images]))
    with replacing(path) as partial:
        draw_sheet(rows, partial, read, legend={relation: legend[relation] for relation in relations})


def write_contact_sheets(
    table: ImageTable, folder: Path, limits: ImageLimits, *, classes: int, pictures: int, seed: int
) -> None:
    """Write a PNG for each split: some of its classes, chosen blindly, and some images of each.

    Args:
        table: images that can be read.
        folder: folder of the pictures, sheet_train.png and so on.
        limits: how large the images' files may be.
        classes: number of classes to draw.
        pictures: number of images to draw of each class.
        seed: seed of the choice of classes and images.

    Raises:
        InputError: if a folder is in the place of a picture.
    """
    for split in SPLITS:
        part = table.subset(split)
        if not len(part):
            continue
        rng = np.random.default_rng(seed)
        chosen_classes = _choose(np.unique(part.labels[:, 0]), classes, rng)
        rows_by_class = [np.flatnonzero(part.labels[:, 0] == number) for number in chosen_classes]
        chosen_rows = [_choose(rows, pictures, rng) for rows in rows_by_class]
        titles = [part.name_class(part.labels[rows[0], 0]) for rows in chosen_rows]
        images = [[(path, "") for path in part.paths[rows].tolist()] for rows in chosen_rows]
        with replacing_file(folder / f"sheet_{split}.png") as partial:
            draw_sheet(list(zip(titles, images, strict=True)), partial, functools.partial(read_image, limits=limits))


def _choose(values: npt.NDArray[np.int64], count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Choose some of the values at random -> rising."""
    return np.sort(rng.choice(values, size=min(count, len(values)), replace=False))
