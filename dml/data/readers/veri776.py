"""The reader of VeRi-776."""

import re
from pathlib import Path

from dml.data.judgments import make_camera_table
from dml.data.layout import Layout, read_list_rows
from dml.data.table import ImageTable

LAYOUT = Layout(
    name="VeRi-776",
    tree="name_train.txt, name_query.txt, name_test.txt and the folders image_train/, image_query/ and image_test/",
    page="https://github.com/JDAI-CV/VeRidataset",
)
LISTS = {"train": "train", "query": "query", "gallery": "test"}
NAME = re.compile(r"(\d{4})_c(\d{3})_\d+_\d+\.jpg")


def read(root: str | Path | None) -> ImageTable:
    """Read VeRi-776 (Liu et al., ECCV 2016): a class is a vehicle that some of twenty cameras film.

    The root holds ``name_train.txt``. A query excludes the images of its vehicle by its camera: those of the official
    ``jk_index.txt``. The query's own image, which is in the gallery too, is one of them.
    """
    folder = LAYOUT.root(root)
    images = [
        (f"{folder}/image_{part}/{name}", split, place)
        for split, part in LISTS.items()
        for place, (name,) in read_list_rows(LAYOUT.find(folder, f"name_{part}.txt"), 1)
    ]
    return make_camera_table(images, NAME, "0002_c002_00030600_0.jpg", level="vehicle", source=f"the lists in {folder}")
