"""Tables of re-identification: the name of an image file says whom it shows, and which camera took it."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml.data.splits import number_classes
from dml.data.table import ImageTable, find_equal
from dml.runtime.errors import InputError
from dml.runtime.text import printable


class NamedImage(NamedTuple):
    """An image file, its split, and the place that names it, for error lines."""

    path: str
    split: str
    place: str


def parse_name(path: str, place: str | Path, pattern: re.Pattern[str], example: str) -> tuple[str, ...]:
    """Return the groups of a pattern that matches the whole name of a file.

    Raises:
        InputError: if the name is another one; ``example`` says what would be right.
    """
    if match := pattern.fullmatch(name := path.rpartition("/")[2]):
        return match.groups()
    raise InputError(f"{printable(place)}: name {printable(repr(name))}, expected one such as {example}")


def make_camera_table(
    images: Iterable[NamedImage], pattern: re.Pattern[str], example: str, *, level: str, source: str
) -> ImageTable:
    """Make the table of images whose names hold the class and the camera, the two groups of the pattern.

    A query excludes the gallery's images of its class by its camera, as the field does: these may be the next frames of
    the same scene. Images of other classes by its camera stay.

    Raises:
        InputError: if a name doesn't match the pattern.
    """
    listed = [*images]
    names = [parse_name(image.path, image.place, pattern, example) for image in listed]
    labels, classes = number_classes(name for name, _ in names)
    views, _ = number_classes(" ".join(view) for view in names)
    split = np.array([image.split for image in listed], dtype=np.str_)
    queries, gallery = np.flatnonzero(split == "query"), np.flatnonzero(split == "gallery")
    pairs = find_equal(views[queries], views[gallery])
    return ImageTable(
        paths=np.array([image.path for image in listed], dtype=np.str_),
        labels=labels[:, None],
        split=split,
        levels=(level,),
        names=(classes,),
        source=source,
        excluded=np.stack([queries[pairs[:, 0]], gallery[pairs[:, 1]]], axis=1),
    )
