"""The reader of ILIAS."""

import re
from pathlib import Path

import numpy as np

from dml.data.judgments import parse_name
from dml.data.layout import Layout, read_list_rows
from dml.data.splits import number_classes
from dml.data.table import ImageTable

LAYOUT = Layout(
    name="ILIAS",
    tree="image_ids/ with image_query_ids.txt and positive_ids.txt, and the folder ilias_core/",
    page="https://github.com/ilias-vrg/ilias",
)
LISTS = {"query": ("image_query_ids.txt", "query/Q"), "gallery": ("positive_ids.txt", "pos/P")}


def read(root: str | Path | None) -> ImageTable:
    """Read the core of ILIAS (Kordopatis-Zilos et al., CVPR 2025): image queries for particular objects.

    The gallery holds the positives alone: the distractors of YFCC100M, and queries that are texts, aren't read. Images
    aren't cropped to their boxes.

    Args:
        root: the folder that holds ``image_ids/`` and ``ilias_core/``.

    Raises:
        InputError: if a list or the folder is missing, or a line names no image of an object.
    """
    folder = LAYOUT.root(root)
    images = LAYOUT.find(folder, "ilias_core")
    rows = [
        (split, *parse_name(cell, place, re.compile(f"(([^/]+)/{start}[^/,]+)(,.*)?"), f"name_001/{start}001_00.jpg"))
        for split, (name, start) in LISTS.items()
        for place, (cell,) in read_list_rows(LAYOUT.find(folder, f"image_ids/{name}"), 1)
    ]
    labels, names = number_classes(row[2] for row in rows)
    return ImageTable(
        paths=np.array([f"{images}/{row[1]}" for row in rows], dtype=np.str_),
        labels=labels[:, None],
        split=np.array([row[0] for row in rows], dtype=np.str_),
        levels=("object",),
        names=(names,),
        source=f"the lists in {folder}/image_ids",
    )
