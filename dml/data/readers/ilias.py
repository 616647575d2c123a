"""The reader of ILIAS."""

from pathlib import Path

import numpy as np

from dml.data.layout import Layout, read_list_rows
from dml.data.splits import number_classes
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.text import printable

LAYOUT = Layout(
    name="ILIAS",
    tree="image_ids/ with image_query_ids.txt and positive_ids.txt, and the folder ilias_core/",
    page="https://github.com/ilias-vrg/ilias",
)
LISTS = {"query": "image_query_ids.txt", "gallery": "positive_ids.txt"}
FOLDERS = {"query": "query", "gallery": "pos"}


def read(root: str | Path | None) -> ImageTable:
    """Read the core of ILIAS (Kordopatis-Zilos et al., CVPR 2025): image queries for particular objects.

    A class is an object, named by its folder. The gallery holds the positives alone: the distractors of YFCC100M, and
    the queries that are texts, aren't read. The officially cropped queries aren't cropped.

    Args:
        root: the folder that holds ``image_ids/`` and ``ilias_core/``.

    Raises:
        InputError: if a list or the folder is missing, or a line names no image of an object.
    """
    folder = LAYOUT.root(root)
    lists = {split: LAYOUT.find(folder, f"image_ids/{name}") for split, name in LISTS.items()}
    images = LAYOUT.find(folder, "ilias_core")
    paths: list[str] = []
    objects: list[str] = []
    split: list[str] = []
    for name, path in lists.items():
        for place, (line,) in read_list_rows(path, 1):
            image = line.partition(",")[0].strip()
            parts = image.split("/")
            if len(parts) != 3 or parts[1] != FOLDERS[name]:
                example = f"name_001/{FOLDERS[name]}/{FOLDERS[name][0].upper()}001_00.jpg"
                raise InputError(f"{place}: image {printable(repr(image))}, expected one such as {example}")
            paths.append(f"{images}/{image}")
            objects.append(parts[0])
            split.append(name)
    labels, names = number_classes(objects)
    return ImageTable(
        paths=np.array(paths, dtype=np.str_),
        labels=labels[:, None],
        split=np.array(split, dtype=np.str_),
        levels=("object",),
        names=(names,),
        source=" and ".join(map(str, lists.values())),
    )
