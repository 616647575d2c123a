"""The check that an evaluation can have a result, from labels and splits alone."""

import numpy as np

from dml.data.table import ImageTable
from dml.evaluation.benchmark_lists import benchmark_lists
from dml.evaluation.ranking.positives import Positives
from dml.ops.errors import InputError
from dml.ops.escaping import printable


def check_queries(part: ImageTable) -> None:
    """Make sure that at each evaluated level some query has a positive, which evaluations else find at their end.

    Args:
        part: the rows of one evaluation; a table without rows is passed.

    Raises:
        InputError: if no query has a positive at some level, or the splits are not one evaluation.
    """
    for benchmark in benchmark_lists(part) if len(part) else ():
        gallery = None if benchmark.gallery is None else part.labels[benchmark.gallery]
        positives = Positives(part.labels[benchmark.queries], gallery, benchmark.excluded)
        levels = range(len(part.levels)) if benchmark.level is None else (benchmark.level,)
        for level in levels:
            if not positives.count(level).any():
                raise InputError(_describe(part, len(benchmark.queries), level, has_gallery=gallery is not None))


def is_of_one_class(part: ImageTable) -> bool:
    """Return whether all images are of one class at the finest level, so that every neighbour is right."""
    return len(np.unique(part.labels[:, 0])) == 1


def check_validation_classes(part: ImageTable) -> None:
    """Make sure that validations can differ, see `is_of_one_class`.

    Args:
        part: the rows of a validation.

    Raises:
        InputError: if the images are all of one class.
    """
    if is_of_one_class(part):
        raise InputError(
            f"{printable(part.source or 'dataset')}: the images in the {part.split[0]} split are all of one "
            f"{part.levels[0]}, so that every neighbour is right, and no checkpoint better than another; two are "
            "needed, or trainer.val_check_interval=null, which validates never"
        )


def _describe(part: ImageTable, number: int, level: int, *, has_gallery: bool) -> str:
    source, name = printable(part.source or "dataset"), part.levels[level]
    if has_gallery:
        return (
            f"{source}: none of the {number:,} queries has another image of its {name} in the gallery, so nothing can "
            "be evaluated; the gallery needs images of the queries' classes"
        )
    return (
        f"{source}: none of the {number:,} images in the {part.split[0]} split has another image of its {name} there, "
        "so nothing can be evaluated; a class needs two images or more in a split"
    )
