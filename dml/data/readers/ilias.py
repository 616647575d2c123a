"""The reader of ILIAS."""

import logging
import re
from pathlib import Path

import numpy as np

from dml.data.image_files.parts import WHOLE, Edges, parse_edges
from dml.data.judgments import parse_name
from dml.data.layout import Layout, read_list_rows
from dml.data.splits import number_classes
from dml.data.table import ImageTable
from dml.runtime.errors import InputError

logger = logging.getLogger(__name__)

LAYOUT = Layout(
    name="ILIAS",
    tree="image_ids/ with image_query_ids.txt and positive_ids.txt, and the folder ilias_core/",
    page="https://github.com/ilias-vrg/ilias",
)
LISTS = {"query": ("image_query_ids.txt", "query/Q"), "gallery": ("positive_ids.txt", "pos/P")}


def read(root: str | Path | None) -> ImageTable:
    """Read the core of ILIAS (Kordopatis-Zilos et al., CVPR 2025): image queries for particular objects.

    The gallery holds the positives alone, and queries that are texts aren't read. Queries are cropped to the boxes in
    their ``_bbox.txt``, to what holds all of them; without this file they are whole.

    Args:
        root: the folder that holds ``image_ids/`` and ``ilias_core/``.

    Raises:
        InputError: if a list or the folder is missing, a line names no image of an object, or a box isn't one.
    """
    folder = LAYOUT.root(root)
    images = LAYOUT.find(folder, "ilias_core")
    rows = [
        (split, *parse_name(cell, place, re.compile(f"(([^/]+)/{start}[^/,]+)(,.*)?"), f"name_001/{start}001_00.jpg"))
        for split, (name, start) in LISTS.items()
        for place, (cell,) in read_list_rows(LAYOUT.find(folder, f"image_ids/{name}"), 1)
    ]
    labels, names = number_classes(row[2] for row in rows)
    boxes = [_read_box(images / row[1]) if row[0] == "query" else WHOLE for row in rows]
    if lacking := boxes.count(WHOLE) - sum(row[0] == "gallery" for row in rows):
        logger.warning("ILIAS: %d queries have no _bbox.txt, and aren't cropped", lacking)
    return ImageTable(
        paths=np.array([f"{images}/{row[1]}" for row in rows], dtype=np.str_),
        labels=labels[:, None],
        split=np.array([row[0] for row in rows], dtype=np.str_),
        levels=("object",),
        names=(names,),
        source=f"the lists in {folder}/image_ids",
        boxes=np.array(boxes, dtype=np.int64).reshape(-1, 4),
    )


def _read_box(image: Path) -> Edges:
    """Return the edges of what holds all boxes of an image; `WHOLE` if it has no file of boxes."""
    path = image.with_name(f"{image.stem}_bbox.txt")
    if not path.exists():
        return WHOLE
    rows = [cells for _, cells in read_list_rows(path, 4)]
    try:
        x, y, width, height = np.array(rows, dtype=np.float64).T
    except ValueError as error:
        raise InputError(f"{path}: {error}; expected x, y, width and height in a line") from error
    corners = zip(x, y, x + width, y + height, strict=True)
    edges = np.array([parse_edges(box, str(path), rounds=True) for box in corners])
    return (*edges[:, :2].min(axis=0).tolist(), *edges[:, 2:].max(axis=0).tolist())
