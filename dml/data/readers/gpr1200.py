"""The reader of GPR1200."""

import os
import re
from pathlib import Path

import numpy as np

from dml.data.image_listing import list_folder
from dml.data.judgments import parse_name
from dml.data.layout import Layout
from dml.data.table import EVERY_LEVEL, UNKNOWN, ImageTable

LAYOUT = Layout(
    name="GPR1200",
    tree="the folder images/ with 0_<name>.jpg to 1199_<name>.jpg",
    page="https://github.com/Visual-Computing/GPR1200",
)
NAME = re.compile(r"(\d{1,3}|1[01]\d\d)_.+")
SUBSETS = ("landmarks", "nature", "sketches", "objects", "products", "faces")
CATEGORIES = 200  # of each sub-set, by number


def read(root: str | Path | None) -> ImageTable:
    """Read GPR1200 (Schall et al., 2021): a test of 1,200 categories in six sub-sets, with ten images each.

    The images are in ``images/``. Each is a query, and all are the gallery, so each is in the table twice. By the
    official protocol a query doesn't exclude itself: it is the first of its ten positives. The levels are the sub-sets,
    each with a benchmark list: its queries search all images. So ``level0/ap`` and so on are the official partial
    scores, and ``mean/ap`` is the official score, as the sub-sets are of one size.
    """
    folder = LAYOUT.root(root)
    paths = list_folder(LAYOUT.find(folder, "images"))
    names = [parse_name(os.path.basename(path), path, NAME, "1199_a.jpg") for path in paths]
    numbers = np.array(names, dtype=np.int64).reshape(-1, 1)
    order = np.argsort(numbers[:, 0], kind="stable")
    labels = np.repeat(numbers[order], len(SUBSETS), axis=1)
    subset = labels[:, 0] // CATEGORIES
    return ImageTable(
        paths=np.tile(np.array(paths, dtype=np.str_)[order], 2),
        labels=np.concatenate([np.where(np.arange(len(SUBSETS)) == subset[:, None], labels, UNKNOWN), labels]),
        split=np.repeat(["query", "gallery"], len(paths)),
        levels=SUBSETS,
        benchmark=np.concatenate([subset, np.full(len(paths), EVERY_LEVEL)]),
        source=str(folder),
    )
