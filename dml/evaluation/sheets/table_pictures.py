"""Pictures of the images of a table: queries with their neighbours, and some images of each class."""

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dml.data.image_files.images import read_image
from dml.data.image_files.limits import ImageLimits
from dml.data.prepared.prepared_files import replacing_file
from dml.data.table import SPLITS, UNKNOWN, ImageTable
from dml.evaluation.ranking.queries import PerQuery
from dml.evaluation.sheets.pictures import choose_queries, draw_contact_sheet, draw_retrieval_sheet
from dml.ops.filesystem.files import replacing


def write_retrieval_sheet(
    table: ImageTable, ranked: PerQuery, path: Path, limits: ImageLimits, *, queries: int, neighbors: int, seed: int
) -> None:
    """Write a PNG of some queries, chosen blindly, and their nearest neighbours.

    Args:
        table: the tested images.
        ranked: the queries and their neighbours, as rows of the table.
        path: path of the PNG.
        limits: how large the images' files may be.
        queries: number of queries to draw.
        neighbors: number of neighbours to draw beside each query.
        seed: seed of the choice of queries.
    """
    read = functools.partial(read_image, limits=limits)
    level = next(level for level in range(len(table.levels)) if (table.labels[ranked.queries, level] != UNKNOWN).all())
    labels, paths = table.labels[:, level], table.paths
    chosen = choose_queries(len(ranked.queries), min(queries, len(ranked.queries)), seed)
    rows = [
        (read(paths[query]), [(read(paths[i]), bool(labels[i] == labels[query])) for i in nearest])
        for query, nearest in zip(
            ranked.queries[chosen].tolist(), ranked.neighbors[chosen, :neighbors].tolist(), strict=True
        )
    ]
    with replacing(path) as partial:
        draw_retrieval_sheet(rows, partial)


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
        images = [[read_image(part.paths[i], limits) for i in rows.tolist()] for rows in chosen_rows]
        with replacing_file(folder / f"sheet_{split}.png") as partial:
            draw_contact_sheet(list(zip(titles, images, strict=True)), partial)


def _choose(values: npt.NDArray[np.int64], count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Choose some of the values at random -> rising."""
    return np.sort(rng.choice(values, size=min(count, len(values)), replace=False))
