"""The ranking metrics of each query."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES
from dml.evaluation.metric_config import MetricConfig
from dml.evaluation.ranking.blocks import Ranking, choose_group_size
from dml.evaluation.ranking.exclusions import find_nearest_items
from dml.evaluation.ranking.items import Items, Labels, check_query_and_gallery
from dml.evaluation.ranking.positives import Positives
from dml.ops.errors import InputError
from dml.ops.poincare import pair_distances
from dml.retrieval.reranking.gallery_comparison import Comparison, Reranker
from dml.retrieval.rows import Embeddings

LARGEST_BLOCK = 4096
"""The largest number of queries in a block, which is also the number in one of FAISS's matrix products."""


@dataclass(frozen=True)
class PerQuery:
    """The metrics and the nearest neighbours of single queries.

    Args:
        queries: (Q,) indices among all queries.
        values: {metric: (Q,) float64}, NaN where the query has no positive.
        neighbors: (Q, k) gallery indices of the nearest items, nearest first, ties by index.
        similarities: (Q, k) float32, cosine similarities of the neighbors; in a Poincare ball, their distances with a
            negative sign.
        has_positive: {"level0", ...: (Q,) whether the query has a positive at the level, "": whether at any}.
    """

    queries: npt.NDArray[np.int64]
    values: dict[str, npt.NDArray[np.float64]]
    neighbors: npt.NDArray[np.int64]
    similarities: npt.NDArray[np.float32]
    has_positive: dict[str, npt.NDArray[np.bool_]]

    @staticmethod
    def join(parts: Sequence["PerQuery"]) -> "PerQuery":
        """Join parts in their order; the joined shares of several processes equal the result of one, bit for bit."""
        return PerQuery(
            np.concatenate([part.queries for part in parts]),
            {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values},
            np.concatenate([part.neighbors for part in parts]),
            np.concatenate([part.similarities for part in parts]),
            {level: np.concatenate([part.has_positive[level] for part in parts]) for level in parts[0].has_positive},
        )

    def compute_means(self) -> dict[str, float]:
        """Return the mean of each metric over the queries that have a positive, and how many queries have none.

        A metric may have no value for a query that has a positive, or for all: its mean is of the queries that have
        one, and NaN if there are none.

        Raises:
            InputError: if no query has a positive, because a mean over no query is no result.
        """
        means: dict[str, float] = {}
        for name, values in self.values.items():
            level = name.rpartition("/")[0]
            has_positive = self.has_positive[level]
            if not has_positive.any():
                raise InputError(f"{level or name}: none of the {len(values)} queries has a positive in the gallery")
            means[f"{level}/{QUERIES_WITHOUT_POSITIVES}".removeprefix("/")] = float((~has_positive).sum())
            means[name] = math.nan if np.isnan(values).all() else float(np.nanmean(values))
        return means

    def mask_queries_without_positives(self) -> None:
        """Set the values of queries without positives to NaN."""
        for name, values in self.values.items():
            values[~self.has_positive[name.rpartition("/")[0]]] = np.nan


def rank_queries(
    query: Embeddings,
    query_labels: Labels,
    gallery: Embeddings | None = None,
    gallery_labels: Labels | None = None,
    *,
    neighbors: int = 0,
    share: tuple[int, int] = (0, 1),
    excluded: npt.NDArray[np.int64] | None = None,
    **settings: Any,
) -> PerQuery:
    """Compute the ranking metrics of `dml.evaluation.evaluate` for each query, and the nearest neighbours.

    Args:
        query: embeddings (Q, D).
        query_labels: (Q,) or (Q, L) integers.
        gallery: embeddings (G, D); None if the queries are their own gallery.
        gallery_labels: (G,) or (G, L) integers.
        neighbors: number of nearest items to return for each query; a smaller gallery gives all its items.
        share: (rank, world) of this process, which ranks a part of the queries, see `query_share`.
        excluded: (Q, M) the gallery items, no two equal, that each query excludes, padded with -1; None excludes
            the query itself from a gallery of the queries, and nothing from another one.
        **settings: fields of `MetricConfig`. Metrics of clusters are ignored, as a query has no value of them.

    Raises:
        InputError: if `evaluate` raises one for the same arguments, except that queries may have no positives; or if a
            query excludes the whole gallery.
    """
    config = MetricConfig(**settings)
    queries, items = check_query_and_gallery(query, query_labels, gallery, gallery_labels, config.curvature)
    return rank_items(queries, items, config, neighbors=neighbors, share=share, excluded=excluded)


def query_share(queries: int, gallery: int, share: tuple[int, int], memory: int = MetricConfig.memory) -> range:
    """Return the range of the queries that one of several processes ranks.

    Processes share whole blocks, so that every matrix product has the shape that it has in a single process.

    Raises:
        InputError: unless 0 <= rank < world.
    """
    rank, world = share
    if not 0 <= rank < world:
        raise InputError(f"share = {share}: expected (rank, world) with rank from 0 to world - 1")
    block = _choose_block_size(gallery, memory)
    blocks = -(-queries // block)
    return range(*(min(queries, part * blocks // world * block) for part in (rank, rank + 1)))


def rank_items(
    queries: Items,
    gallery: Items | None,
    config: MetricConfig,
    *,
    neighbors: int = 0,
    share: tuple[int, int] = (0, 1),
    excluded: npt.NDArray[np.int64] | None = None,
    reranker: Reranker | None = None,
) -> PerQuery:
    """Rank checked items, see `rank_queries`; a reranker changes the distances before.

    Raises:
        InputError: if a single item is its own gallery, a query excludes the whole gallery, or items of a Poincare ball
            should be re-ranked.
    """
    if gallery is None and len(queries.labels) < 2:
        raise InputError("query: 1 item and no gallery, at least 2 are needed")
    if gallery is None and config.exclude_nearest:
        gallery = queries
    searched = queries if gallery is None else gallery
    size = len(searched.labels)
    rows, block_size = (
        query_share(len(queries.labels), size, share, config.memory),
        _choose_block_size(size, config.memory),
    )
    if config.exclude_nearest:
        excluded = find_nearest_items(queries, searched, rows, block_size)
    positives = Positives(queries.labels, None if gallery is None else gallery.labels, excluded)
    max_excluded = positives.excluded.shape[1]
    if max_excluded >= size:
        raise InputError(f"gallery: a query excludes all of its {size} items, at least 1 must be left")
    result = _allocate_result(rows, positives, config, min(neighbors, size - max_excluded))
    if result.values or neighbors:
        comparison = _rerank(queries, gallery, positives, reranker) if reranker else None
        ranking = Ranking(queries, searched, positives, config, result.neighbors.shape[1], comparison)
        for block in ranking.rank_blocks(rows, block_size):
            positions = slice(block.queries.start - rows.start, block.queries.stop - rows.start)
            result.neighbors[positions], result.similarities[positions] = (
                block.neighbors.cpu(),
                block.similarities.cpu(),
            )
            if block.scores:  # in one copy, because a GPU makes each wait
                scores = torch.stack([*block.scores.values()]).cpu().numpy()
                for name, values in zip(block.scores, scores, strict=True):
                    result.values[name][positions] = values
    if queries.curvature:
        _set_poincare_similarities(result, queries, searched)
    result.mask_queries_without_positives()
    return result


def _rerank(queries: Items, gallery: Items | None, positives: Positives, reranker: Reranker) -> Comparison:
    """Return the distances of a re-ranking."""
    if queries.curvature:
        raise InputError("a re-ranking is of cosine similarities, and needs curvature = 0")
    items = queries if gallery is None else gallery
    return reranker(Comparison(queries.embeddings, items.embeddings, positives.excluded, gallery is None))


def _set_poincare_similarities(result: PerQuery, queries: Items, gallery: Items) -> None:
    """Replace the inner products that rank the neighbours by the negative Poincare distances, a block at a time."""
    for start in range(0, len(result.queries), LARGEST_BLOCK):
        part = slice(start, start + LARGEST_BLOCK)
        device = queries.embeddings.device
        points = queries.embeddings[torch.from_numpy(result.queries[part]).to(device)].double()
        neighbors = gallery.embeddings[torch.from_numpy(result.neighbors[part]).to(device)].double()
        distances = pair_distances(points[:, None], neighbors, queries.curvature)
        result.similarities[part] = 0.0 - distances.cpu().numpy()


def _choose_block_size(gallery: int, memory: int) -> int:
    """Return how many queries are in a block, so that the memory holds their distances: whole groups, at least one."""
    group = choose_group_size(gallery)
    return min(max(memory // (4 * gallery), 1), LARGEST_BLOCK) // group * group or group


def _allocate_result(rows: range, positives: Positives, config: MetricConfig, neighbors: int) -> PerQuery:
    return PerQuery(
        np.array(rows, dtype=np.int64),
        {name: np.empty(len(rows)) for name in config.ranking_names(positives.depth)},
        np.empty((len(rows), neighbors), dtype=np.int64),
        np.empty((len(rows), neighbors), dtype=np.float32),
        positives.find_queries_with_any(rows),
    )
