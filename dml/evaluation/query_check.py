"""The check that an evaluation can have a result, from labels and splits alone."""

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
