"""Tables of tests in which a query excludes items: by its camera, or by lists of what is right and what is ignored."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dml.data.cells import number_classes
from dml.data.contents import split_part
from dml.data.table import EVERY_LEVEL, UNKNOWN, ImageTable, find_equal
from dml.runtime.errors import InputError
from dml.runtime.text import printable

Indices = NDArray[np.int64]


def parse_name(name: str, place: str | Path, pattern: re.Pattern[str], example: str) -> tuple[str, ...]:
    """Return the groups of a pattern that matches the whole name of an image, which ``place`` lists."""
    if match := pattern.fullmatch(name):
        return match.groups()
    raise InputError(f"{printable(place)}: name {printable(repr(name))}, expected one such as {example}")


def make_camera_table(
    images: Sequence[tuple[str, str, str]], pattern: re.Pattern[str], example: str, *, level: str, source: str
) -> ImageTable:
    """Make the table of images (path, split, place), whose names hold class and camera, the pattern's groups.

    A query excludes the gallery's images of its class by its camera.
    """
    paths, split, _ = np.array(images, dtype=np.str_).reshape(-1, 3).T
    names = [parse_name(os.path.basename(path), place, pattern, example) for path, _, place in images]
    labels, classes = number_classes(name for name, _ in names)
    views, _ = number_classes(map(" ".join, names))
    return ImageTable(
        paths=paths,
        labels=labels[:, None],
        split=split,
        levels=(level,),
        names=(classes,),
        source=source,
        excluded=find_equal(*(np.where(split == name, views, UNKNOWN) for name in ("query", "gallery"))),
    )


class Query(NamedTuple):
    """A query of a benchmark list, and the images, rising, that are its positives or aren't in its ranking."""

    path: str
    level: int
    positives: Indices
    ignored: Indices


def make_judged_table(
    queries: Sequence[Query], gallery: Sequence[str], *, levels: tuple[str, ...], source: str
) -> ImageTable:
    """Make the table of queries whose positives are listed, before the images of the gallery.

    Queries with the same positives are a class of their level, named by the first of them. An image that is a positive
    of several classes of a level has a further row in the list of that level for each but the first, and a query
    excludes all but one of these rows: that of its class.
    """
    numbers: list[dict[bytes, int]] = [{} for _ in levels]
    names: list[list[str]] = [[] for _ in levels]
    query_labels = np.full((len(queries), len(levels)), UNKNOWN)
    labels = np.full((len(gallery), len(levels)), UNKNOWN)
    further = [np.empty((0, 3), dtype=np.int64)]  # level, image and class
    for row, (path, level, positives, _) in enumerate(queries):
        query_labels[row, level] = label = numbers[level].setdefault(positives.tobytes(), len(numbers[level]))
        if label == len(names[level]):
            names[level].append(split_part(path)[0].rpartition("/")[2])
            taken = positives[labels[positives, level] != UNKNOWN]
            labels[np.setdiff1d(positives, taken), level] = label
            further.append(np.stack([np.full(len(taken), level), taken, np.full(len(taken), label)], axis=1))
    labels = np.where(labels == UNKNOWN, [*map(len, names)], labels)
    further_levels, images, classes = (rows := np.concatenate(further)).T
    further_labels = np.full((len(rows), len(levels)), UNKNOWN)
    further_labels[np.arange(len(rows)), further_levels] = classes
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for row, query in enumerate(queries):
        in_list, is_own = further_levels == query.level, classes == query_labels[row, query.level]
        others = np.flatnonzero(in_list & (~is_own | np.isin(images, query.ignored)))
        excluded = np.concatenate([query.ignored, images[in_list & is_own], len(gallery) + others])
        pairs.append(np.stack([np.full(len(excluded), row), len(queries) + excluded], axis=1))
    return ImageTable(
        paths=np.array([*(query.path for query in queries), *gallery, *(gallery[image] for image in images)]),
        labels=np.concatenate([query_labels, labels, further_labels]),
        split=np.repeat(["query", "gallery"], [len(queries), len(gallery) + len(rows)]),
        levels=levels,
        names=tuple((*level_names, "no positive") for level_names in names),
        benchmark=np.array([*(query.level for query in queries), *[EVERY_LEVEL] * len(gallery), *further_levels]),
        source=source,
        excluded=np.concatenate(pairs),
        is_tree=False,
    )
