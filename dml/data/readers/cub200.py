"""The reader of CUB-200-2011."""

from pathlib import Path

import numpy as np

from dml.data.layout import Layout, parse_whole_number, read_list_rows
from dml.data.table import ImageTable
from dml.runtime.errors import InputError

LAYOUT = Layout(
    name="CUB-200-2011",
    tree="images.txt, image_class_labels.txt, classes.txt and the folder images/",
    page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
)
LAST_TRAINING_CLASS, CLASSES = 100, 200


def read(root: str | Path | None) -> ImageTable:
    """Read Caltech-UCSD Birds-200-2011 (Wah et al., 2011): classes 1-100 are for training, 101-200 for testing.

    The root holds ``images.txt``. The official ``train_test_split.txt`` is for classification and isn't read.
    """
    folder = LAYOUT.root(root)
    lists = [LAYOUT.find(folder, name) for name in ("images.txt", "image_class_labels.txt", "classes.txt")]
    images, classes = map(_read_values, lists[:2])
    names = _read_values(lists[2], highest=CLASSES)
    if images.keys() != classes.keys():
        raise InputError(
            f"{lists[0]}: {len(images)} images, {len(classes)} in {lists[1].name}; "
            f"image {min(images.keys() ^ classes.keys())} is in one of the two alone"
        )
    ids = np.array(
        [
            parse_whole_number(classes[image], lists[1], f"class_id of image {image}", lowest=1, highest=CLASSES)
            for image in images
        ]
    )
    for (image, path), number in zip(images.items(), ids.tolist(), strict=True):
        if path.partition("/")[0] != names.get(number):
            raise InputError(
                f"{lists[0]}: image {image} is {path}, its class in {lists[1].name} is {number}, "
                f"{names.get(number)} in {lists[2].name}"
            )
    return ImageTable(
        paths=np.array([f"{folder}/images/{path}" for path in images.values()]),
        labels=ids.astype(np.int64)[:, None] - 1,
        split=np.where(ids <= LAST_TRAINING_CLASS, "train", "test"),
        levels=("class",),
        names=(tuple(names.get(number, "") for number in range(1, max(names, default=0) + 1)),),
        source=" and ".join(map(str, lists[:2])),
    )


def _read_values(path: Path, highest: int = 2**31 - 1) -> dict[int, str]:
    """Read a list whose lines are ``id value``, with ids from 1 to ``highest``. -> the values by id"""
    values: dict[int, str] = {}
    for place, (cell, value) in read_list_rows(path, 2):
        number = parse_whole_number(cell, place, "id", lowest=1, highest=highest)
        if number in values:
            raise InputError(f"{place}: id {number} is there twice, for {values[number]} and {value}")
        values[number] = value
    return values
