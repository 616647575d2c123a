"""The reader of GPR1200."""

import os
import re
from pathlib import Path

import numpy as np

from dml.data.image_listing import list_folder
from dml.data.judgments import parse_name
from dml.data.layout import Layout
from dml.data.table import EVERY_LEVEL, ImageTable

LAYOUT = Layout(
    name="GPR1200",
    tree="the folder images/ with 0_<name>.jpg to 1199_<name>.jpg",
    page="https://github.com/Visual-Computing/GPR1200",
)
NAME = re.compile(r"(\d{1,3}|1[01]\d\d)_.+")


def read(root: str | Path | None) -> ImageTable:
    """Read GPR1200 (Schall et al., 2021): a test of 1,200 categories from six domains, with ten images each.

    Each image is a query, and all images are the gallery, so each is in the table twice. By the official protocol a
    query doesn't exclude itself: it is the first of its ten positives.

    Args:
        root: the folder that holds ``images/``.

    Raises:
        InputError: if the folder is missing, or the name of an image doesn't begin with the number of a category.
    """
    folder = LAYOUT.root(root)
    paths = list_folder(LAYOUT.find(folder, "images"))
    numbers = [int(number) for path in paths for number in parse_name(os.path.basename(path), path, NAME, "1199_a.jpg")]
    order = np.argsort(numbers, kind="stable")
    return ImageTable(
        paths=np.tile(np.array(paths, dtype=np.str_)[order], 2),
        labels=np.tile(np.array(numbers, dtype=np.int64)[order], 2)[:, None],
        split=np.repeat(["query", "gallery"], len(paths)),
        levels=("category",),
        benchmark=np.repeat([0, EVERY_LEVEL], len(paths)),  # rows of one image belong to different lists
        source=str(folder),
    )
