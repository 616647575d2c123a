"""The reader of a user's images of which those for training have no labels."""

import re
from pathlib import Path

import numpy as np

from dml.data.image_listing import list_images
from dml.data.layout import Layout, read_list_lines
from dml.data.readers.csv import read_partly_labeled
from dml.data.table import UNKNOWN, ImageTable
from dml.runtime.paths import expand_home

LAYOUT = Layout(
    name="your own images",
    tree="images at any depth; or of a .txt file with a path in each line, or a .csv file with the column path",
    page="docs/own_data.md",
)


def read(root: str | Path | None) -> ImageTable:
    """Read images for training without labels: those of a folder, or those that a file lists.

    In a .csv file, images may have labels: those of ``val``, ``test``, ``query`` and ``gallery`` must, and those of
    training may. Without splits, all images are for training.

    Args:
        root: path of a folder, of a .txt file with a path in each line, or of a .csv file with the column ``path``.

    Raises:
        InputError: if there is no such folder or file, or an image that isn't for training has no label.
    """
    place = LAYOUT.root(root, "file or folder")
    if place.is_dir():
        return _make_table(list_images(place), str(place))
    if place.suffix.lower() == ".txt" and "path" not in re.split(r"[,;\t]", (lines := read_list_lines(place))[0]):
        paths = [str(place.parent / expand_home(line.strip())) for line in lines if line.strip()]
        return _make_table(paths, str(place))
    return read_partly_labeled(place)


def _make_table(paths: list[str], source: str) -> ImageTable:
    return ImageTable(
        paths=np.array(paths, dtype=np.str_),
        labels=np.full((len(paths), 1), UNKNOWN, dtype=np.int64),
        split=np.full(len(paths), "train"),
        levels=("label",),
        names=((),),
        source=source,
    )
