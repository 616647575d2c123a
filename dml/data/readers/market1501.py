"""The reader of Market-1501."""

import re
from pathlib import Path

from dml.data.image_listing import list_folder
from dml.data.judgments import make_camera_table
from dml.data.layout import Layout
from dml.data.table import ImageTable

LAYOUT = Layout(
    name="Market-1501",
    tree="the folders bounding_box_train/, query/ and bounding_box_test/",
    page="https://zheng-lab-anu.github.io/Project/project_reid.html",
)
FOLDERS = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}
NAME = re.compile(r"(\d{4})_c([1-6])s\d+_\d+_\d+\.jpg")
JUNK = "-1_"  # begins the names of bad detections, which the protocol removes from all rankings


def read(root: str | Path | None) -> ImageTable:
    """Read Market-1501 (Zheng et al., ICCV 2015): pedestrians, a class being a person whom six cameras film.

    The root holds ``bounding_box_train/``. The class ``0000`` of the gallery are distractors, of which no query shows
    one. A query excludes the images of its person by its camera; junk isn't in the table.
    """
    folder = LAYOUT.root(root)
    images = [
        (path, split, path)
        for split, name in FOLDERS.items()
        for path in list_folder(LAYOUT.find(folder, name))
        if split != "gallery" or not path.rpartition("/")[2].startswith(JUNK)
    ]
    return make_camera_table(images, NAME, "0002_c1s1_000451_03.jpg", level="person", source=str(folder))
