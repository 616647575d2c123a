"""The benchmark lists of a table: which queries search which gallery, at which levels, and whether they can."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dml.data.table import EVERY_LEVEL, ImageTable
from dml.evaluation.items import Positives, find_copies
from dml.runtime.errors import InputError
from dml.runtime.text import printable

Rows = npt.NDArray[np.int64]


class BenchmarkList(NamedTuple):
    """Queries, the gallery that they search, and the levels at which the ranking is evaluated.

    Args:
        queries: (Q,) rows of the table.
        gallery: (G,) rows of the table; None if the queries are their own gallery.
        level: the only level at which the list is evaluated; None for all levels.
        excluded: (Q, M) items of the gallery that each query excludes, padded with -1; None excludes the query itself
            if the queries are their own gallery, and otherwise nothing.
    """

    queries: Rows
    gallery: Rows | None
    level: int | None
    excluded: Rows | None

    @property
    def searched(self) -> Rows:
        """The rows that queries search: the gallery, or the queries themselves."""
        return self.queries if self.gallery is None else self.gallery

    def metric_name(self, metric: str) -> str:
        """Return the name that a metric of the list has in metrics.json, which holds those of all lists."""
        return metric if self.level is None else f"level{self.level}/{metric.rpartition('/')[2]}"

    def level_name(self, level: str) -> str:
        """Return what stands before the / in the name that a metric of a level has in metrics.json."""
        return level if self.level is None else f"level{self.level}"


def has_level_lists(table: ImageTable) -> bool:
    """Return whether the table has a separate list for each level, as DyML does, instead of one for all levels."""
    return bool((table.benchmark != EVERY_LEVEL).any())


def benchmark_lists(table: ImageTable) -> Iterator[BenchmarkList]:
    """Yield the lists of a table whose rows are one evaluation, see `dml.evaluation.Evaluator`.

    Raises:
        InputError: if the splits are not one evaluation.
    """
    splits = {str(split) for split in np.unique(table.split)}
    paired = splits == {"query", "gallery"}
    if not paired and (len(splits) != 1 or splits & {"query", "gallery", ""}):
        raise InputError(f"evaluation of the splits {sorted(splits)}: expected query and gallery, or one of the others")
    for level in sorted({*table.benchmark.tolist()} - {EVERY_LEVEL}) or [EVERY_LEVEL]:
        inside = np.isin(table.benchmark, (EVERY_LEVEL, level))
        listed_level = None if level == EVERY_LEVEL else level
        if paired:
            queries, gallery = (np.flatnonzero(inside & (table.split == split)) for split in ("query", "gallery"))
            excluded = find_copies(table.content[queries], table.content[gallery])
            yield BenchmarkList(queries, gallery, listed_level, excluded)
        else:
            yield BenchmarkList(np.flatnonzero(inside), None, listed_level, None)


def check_queries(part: ImageTable) -> None:
    """Make sure that at each evaluated level some query has a positive, which evaluations else find at their end.

    A table without rows is passed.

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
    """Return whether all images are of one class at the finest level, so that every neighbor is right."""
    return len(np.unique(part.labels[:, 0])) == 1


def check_validation_classes(part: ImageTable) -> None:
    """Make sure that validations can differ, see `is_of_one_class`.

    Raises:
        InputError: if the images are all of one class.
    """
    if is_of_one_class(part):
        raise InputError(
            f"{printable(part.source or 'dataset')}: the images in the {part.split[0]} split are all of one "
            f"{part.levels[0]}, so that every neighbor is right, and no checkpoint better than another; two are "
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
