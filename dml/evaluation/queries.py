"""The ranking metrics of each query."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dml.evaluation.blocks import Ranking, group_size
from dml.evaluation.exclusions import nearest_items
from dml.evaluation.items import Items, Labels, checked_items
from dml.evaluation.positives import Positives
from dml.evaluation.scores import METRICS, Wanted
from dml.ops.errors import InputError
from dml.retrieval.rows import Embeddings

MEMORY = 2**29
MOST_AT_ONCE = 4096  # queries; FAISS takes as many into one product


@dataclass(frozen=True)
class PerQuery:
    """What each of some queries scores.

    Args:
        queries: (Q,) their indices among all queries.
        values: {metric: (Q,) float64}, NaN where the query has no positive.
        neighbors: (Q, k) gallery indices of the nearest items, nearest first, ties by index.
        similarities: (Q, k) float32, their cosines.
    """

    queries: npt.NDArray[np.int64]
    values: dict[str, npt.NDArray[np.float64]]
    neighbors: npt.NDArray[np.int64]
    similarities: npt.NDArray[np.float32]

    @staticmethod
    def joined(parts: Sequence["PerQuery"]) -> "PerQuery":
        """The queries of all parts, in their order: of all shares, what one process gives, bit for bit."""
        return PerQuery(
            np.concatenate([part.queries for part in parts]),
            {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values},
            np.concatenate([part.neighbors for part in parts]),
            np.concatenate([part.similarities for part in parts]),
        )

    def means(self) -> dict[str, float]:
        """{metric: mean over the queries that have a positive}, and how many queries have none.

        Raises:
            InputError: if no query has a positive: a mean over nothing is no result.
        """
        means: dict[str, float] = {}
        for name, values in self.values.items():
            level = name.rpartition("/")[0]
            without = int(np.isnan(values).sum())
            if without == len(values):
                raise InputError(f"{level or name}: none of the {len(values)} queries has a positive in the gallery")
            means[f"{level}/queries_without_positives".removeprefix("/")] = float(without)
            means[name] = float(np.nanmean(values))
        return means


def rank_queries(
    query: Embeddings,
    query_labels: Labels,
    gallery: Embeddings | None = None,
    gallery_labels: Labels | None = None,
    *,
    metrics: Sequence[str] = METRICS,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    alpha: float = 1.0,
    count_query: bool = False,
    level_weights: Sequence[float] | None = None,
    neighbors: int = 0,
    share: tuple[int, int] = (0, 1),
    memory: int = MEMORY,
    excluded: npt.NDArray[np.int64] | None = None,
    exclude_nearest: bool = False,
) -> PerQuery:
    """The ranking metrics of `dml.evaluation.evaluate` query by query, and each query's nearest neighbours.

    Args:
        query: (Q, D), as the other arguments in `evaluate`.
        query_labels: (Q,) or (Q, L).
        gallery: (G, D).
        gallery_labels: (G,) or (G, L).
        metrics: those of clusters have no value for a query and are passed over.
        recall_at: the k of recall@k.
        alpha: of H-AP.
        count_query: of H-AP and sum_wap.
        level_weights: of sum_wap.
        neighbors: how many of the nearest items to give; there are as many as the gallery has.
        share: (rank, world): the queries that this process of several ranks, as `query_share` says.
        memory: bytes that the distances of a block of queries may take.
        excluded: (Q, M) the gallery items, no two equal, that each query excludes, padded with -1; None excludes
            the query itself from a gallery of the queries, and nothing from another one.
        exclude_nearest: each query excludes its nearest item instead, whatever that is, as HAPPIER's release does.

    Raises:
        InputError: as `evaluate`, but not for queries without positives; if a query excludes the whole gallery.
    """
    wanted = Wanted(metrics, recall_at, alpha, count_query, level_weights)
    queries, others = checked_items(query, query_labels, gallery, gallery_labels)
    if exclude_nearest:
        others = queries if others is None else others
        at_once = _at_once(len(others.labels), memory)
        excluded = nearest_items(
            queries, others, query_share(len(queries.labels), len(others.labels), share, memory), at_once
        )
    return rank_items(queries, others, wanted, neighbors=neighbors, share=share, memory=memory, excluded=excluded)


def query_share(queries: int, gallery: int, share: tuple[int, int], memory: int = MEMORY) -> range:
    """The queries that one process of several ranks: with `share` = (rank, world), in the order of the ranks.

    Whole blocks are shared out, so that every matrix product has the shape that it has in a single process.

    Raises:
        InputError: unless 0 <= rank < world.
    """
    rank, world = share
    if not 0 <= rank < world:
        raise InputError(f"share = {share}: expected (rank, world) with rank from 0 to world - 1")
    block = _at_once(gallery, memory)
    blocks = -(-queries // block)
    return range(*(min(queries, part * blocks // world * block) for part in (rank, rank + 1)))


def rank_items(
    queries: Items,
    gallery: Items | None,
    wanted: Wanted,
    *,
    neighbors: int = 0,
    share: tuple[int, int] = (0, 1),
    memory: int = MEMORY,
    excluded: npt.NDArray[np.int64] | None = None,
) -> PerQuery:
    """`rank_queries` of checked items."""
    others = queries if gallery is None else gallery
    size = len(others.labels)
    rows = query_share(len(queries.labels), size, share, memory)
    positives = Positives(queries.labels, None if gallery is None else gallery.labels, excluded)
    most = positives.excluded.shape[1]
    if most >= size:
        raise InputError(f"gallery: a query excludes all of its {size} items, at least 1 must be left")
    result = _empty(rows, positives, wanted, min(neighbors, size - most))
    if result.values or neighbors:
        ranking = Ranking(queries, others, positives, wanted, result.neighbors.shape[1])
        for block in ranking.blocks(rows, _at_once(size, memory)):
            here = slice(block.queries.start - rows.start, block.queries.stop - rows.start)
            result.neighbors[here], result.similarities[here] = block.neighbors.cpu(), block.similarities.cpu()
            for name, values in block.scores.items():
                result.values[name][here] = values.cpu()
    _leave_out(result, positives)
    return result


def _at_once(gallery: int, memory: int) -> int:
    """How many queries' distances to the gallery the memory holds: whole groups, at least one."""
    group = group_size(gallery)
    return min(max(memory // (4 * gallery), 1), MOST_AT_ONCE) // group * group or group


def _empty(rows: range, positives: Positives, wanted: Wanted, neighbors: int) -> PerQuery:
    levels = range(positives.depth)
    names = [*(f"level{level}/{name}" for level in levels for name in wanted.binary), *wanted.graded]
    return PerQuery(
        np.array(rows, dtype=np.int64),
        {name: np.empty(len(rows)) for name in names},
        np.empty((len(rows), neighbors), dtype=np.int64),
        np.empty((len(rows), neighbors), dtype=np.float32),
    )


def _leave_out(result: PerQuery, positives: Positives) -> None:
    """Makes the values of queries without positives NaN."""
    none = [positives.number(level)[result.queries] == 0 for level in range(positives.depth)]
    for name, values in result.values.items():
        level = name.rpartition("/")[0].removeprefix("level")
        values[none[int(level)] if level else np.logical_and.reduce(none)] = np.nan
