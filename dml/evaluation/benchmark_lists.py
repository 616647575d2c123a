"""The benchmark lists of a table: which queries search which gallery, at which levels."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dml.data.table import EVERY_LEVEL, ImageTable
from dml.evaluation.ranking.exclusions import find_copies
from dml.ops.errors import InputError

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
