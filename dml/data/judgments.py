"""Tables of tests that list the positives of each query, instead of the classes of the gallery."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dml.data.splits import number_classes
from dml.data.table import EVERY_LEVEL, UNKNOWN, ImageTable, find_equal

Indices = NDArray[np.int64]


class Judged(NamedTuple):
    """A gallery whose labels are those of its queries' classes.

    Args:
        images: (G,) the image of each row. An image that is a positive of several classes has a row for each.
        labels: (G, L) class at each level of which the image is a positive; the number C of classes if it is of none.
        excluded: (E, 2) pairs of a query and a row, by which each query meets each image once.
    """

    images: Indices
    labels: Indices
    excluded: Indices


def judge_gallery(classes: Indices, positives: Sequence[Sequence[Indices]], size: int) -> Judged:
    """Label the images of a gallery by the queries that they are positives of.

    >>> judged = judge_gallery(np.array([0, 1]), [[np.array([2])], [np.array([0, 2])]], size=3)
    >>> judged.images.tolist(), judged.labels[:, 0].tolist(), judged.excluded.tolist()
    ([0, 1, 2, 2], [1, 2, 0, 1], [[0, 3], [1, 2]])

    Args:
        classes: (Q,) class of each query, 0 to C - 1; the queries of a class have the same positives.
        positives: for each class and level, the images of the gallery that are positives.
        size: number of images in the gallery.
    """
    members = [np.unique(np.concatenate(levels)) for levels in positives]
    others = np.setdiff1d(np.arange(size), np.concatenate(members))
    images = np.concatenate([*members, others])
    image_classes = np.repeat(np.arange(len(members) + 1), [*map(len, members), len(others)])
    is_positive = [
        np.concatenate([*map(np.isin, members, by_class), np.zeros(len(others), dtype=bool)])
        for by_class in zip(*positives, strict=True)
    ]
    labels = np.where(np.stack(is_positive, axis=1), image_classes[:, None], len(members))
    order = np.lexsort((image_classes, images))
    images, image_classes = images[order], image_classes[order]
    starts = np.searchsorted(images, np.arange(size))
    repeated = np.flatnonzero(np.bincount(images, minlength=size)[images] > 1)
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for query, label in enumerate(classes.tolist() if len(repeated) else ()):
        own_rows = repeated[image_classes[repeated] == label]
        met_rows = starts.copy()
        met_rows[images[own_rows]] = own_rows
        dropped = repeated[met_rows[images[repeated]] != repeated]
        pairs.append(np.stack([np.full(len(dropped), query), dropped], axis=1))
    return Judged(images, labels[order], np.concatenate(pairs))


def make_judged_table(
    queries: Sequence[str],
    gallery: Sequence[str],
    positives: Sequence[Sequence[Indices]],
    ignored: Sequence[Sequence[Indices]],
    *,
    levels: tuple[str, ...],
    source: str,
) -> ImageTable:
    """Make the table of queries whose positives are listed.

    Queries with the same positives are a class, named by the first of them. With several levels, the table has a
    benchmark list for each: every query is then there once for each level, at which its positives and what it ignores
    may differ.

    Args:
        queries: (Q,) paths.
        gallery: (G,) paths.
        positives: for each query and level, the images of the gallery that are positives.
        ignored: for each query and level, the images of the gallery that the query excludes.
        levels: names of the L levels.
        source: the files that list the images, for error lines.
    """
    depth, number = len(levels), len(queries)
    numbers: dict[tuple[tuple[int, ...], ...], int] = {}
    keys = [tuple(tuple(images.tolist()) for images in by_level) for by_level in positives]
    classes = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    firsts = np.unique(classes, return_index=True)[1].tolist()
    judged = judge_gallery(classes, [positives[query] for query in firsts], len(gallery))
    labels = np.full((depth, number, depth), UNKNOWN)
    pairs: list[Indices] = []
    for level in range(depth):
        labels[level, :, level] = classes
        ignored_images = [by_level[level] for by_level in ignored]
        places = find_equal(np.concatenate(ignored_images), judged.images)
        rows = np.repeat(np.arange(number), [*map(len, ignored_images)])[places[:, 0]]
        excluded = np.concatenate([judged.excluded, np.stack([rows, places[:, 1]], axis=1)])
        pairs.append(excluded + np.array([level * number, depth * number]))
    names = (*(queries[query].rpartition("/")[2] for query in firsts), "no positive")
    return ImageTable(
        paths=np.concatenate([np.tile(np.array(queries), depth), np.array(gallery)[judged.images]]),
        labels=np.concatenate([labels.reshape(-1, depth), judged.labels]),
        split=np.repeat(["query", "gallery"], [depth * number, len(judged.images)]),
        levels=levels,
        names=(names,) * depth,
        benchmark=np.repeat([*range(depth), EVERY_LEVEL], [number] * depth + [len(judged.images)])
        if depth > 1
        else np.empty(0, dtype=np.int64),
        source=source,
        excluded=np.unique(np.concatenate(pairs), axis=0),
        is_tree=False,
    )


def add_training(test: ImageTable, paths: Sequence[str], classes: Sequence[str]) -> ImageTable:
    """Return a test of one level behind training images of other classes, given by their paths and class names."""
    labels, names = number_classes(classes)
    return replace(
        test,
        paths=np.concatenate([np.array(paths, dtype=np.str_), test.paths]),
        labels=np.concatenate([labels[:, None], test.labels + len(names)]),
        split=np.concatenate([np.full(len(paths), "train"), test.split]),
        names=((*names, *test.names[0]),),
        benchmark=np.empty(0, dtype=np.int64),
        content=np.empty(0, dtype=np.int64),
        excluded=test.excluded + len(paths),
    )
