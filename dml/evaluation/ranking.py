"""The ranking of a gallery for queries, in blocks and in one of four ways, and the metrics of each query."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from dml.evaluation.items import Items, Labels, Positives, check_query_and_gallery, find_nearest_items
from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES, Kind, MetricConfig
from dml.evaluation.ranks import Rankings, compute_scores, rank_block, rank_rows
from dml.metrics.binary import positive_ranks
from dml.retrieval.gallery import Gallery, k_nearest
from dml.retrieval.reranking import RERANKINGS, Comparison, Distances
from dml.retrieval.rows import Embeddings
from dml.retrieval.search import Search
from dml.runtime.errors import InputError

SORT_FACTOR = 4
"""Blocks whose items are all ranked on a device are smaller by this factor: that takes up to 16 times the memory of the
distances, so such a block takes 4 times `MetricConfig.memory`. It isn't smaller than what `GPU_SHARE` allows."""

GPU_SHARE = 1 / 8
"""The share of a GPU's memory that such a block may take, as small blocks let it wait for its host."""

MOST_SEARCHED = 512
"""The largest number of nearest items that are searched for, which takes less than half of the time of all ranks."""


def choose_group_size(gallery: int) -> int:
    """Return how many queries a thread ranks at a time: enough that the overhead of torch's calls is small.

    Beyond five million distances, a larger group saves less time than threads lose waiting for a block's last group.
    Blocks are whole groups, so that the sums over the padded rows of a group round in the same way in every block.
    """
    return min(max(5_000_000 // gallery, 1), 64)


class Block(NamedTuple):
    """The results of a range of queries: metrics {name: (Q,)}, nearest items (Q, k) and cosine similarities (Q, k)."""

    queries: range
    scores: dict[str, Tensor]
    neighbors: Tensor
    similarities: Tensor


@dataclass(frozen=True)
class Ranking:
    """The ranking of a gallery for some queries, by ``reranked`` distances if there are some."""

    queries: Items
    gallery: Items
    positives: Positives
    config: MetricConfig
    neighbors: int
    reranked: Distances | None = None

    def rank_blocks(self, rows: range, size: int) -> Iterator[Block]:
        """Rank the queries ``rows``, in blocks of ``size`` queries; FAISS searches if the nearest items are enough."""
        if self.queries.embeddings.is_cuda:
            return self._rank_by_top_k(rows, size) if self._needs_only_nearest else self._rank_by_sort(rows, size)
        return self._rank_by_search(rows, size) if self._needs_only_search else self._rank_by_threads(rows, size)

    @cached_property
    def _largest_r(self) -> int:
        """The largest number of positives of a query at any level, if a metric depends on the ranks up to it."""
        if not self.config.select_kind(Kind.WITHIN_R):
            return 0
        return max(int(self.positives.count(level).max(initial=0)) for level in range(self.positives.depth))

    @property
    def _needs_only_nearest(self) -> bool:
        """Whether the nearest items are enough for all metrics, and few enough to be searched for."""
        return not self.config.needs_whole_ranking and self._largest_r <= MOST_SEARCHED

    @property
    def _needs_only_search(self) -> bool:
        """Whether a search finds enough items for all metrics, and the same number for each query."""
        excluded = self.positives.excluded
        same_number = self._num_nearest <= len(self.gallery.labels) - excluded.shape[1] or bool((excluded >= 0).all())
        return self._needs_only_nearest and same_number and self.reranked is None

    @property
    def _num_nearest(self) -> int:
        """The largest number of nearest items that a metric needs, or that are returned."""
        return max(self.config.largest_k, self.neighbors, self._largest_r)

    def _rank_by_search(self, rows: range, size: int) -> Iterator[Block]:
        search = Search(self.gallery.embeddings, self._num_nearest, self.positives.excluded)
        for block in _split_range(rows, size):
            similarities, neighbors = search(self.queries.embeddings[block.start : block.stop], block.start)
            labels = self.queries.labels[block.start : block.stop]
            is_same_by_level = [
                torch.from_numpy(labels[:, level, None] == self.gallery.labels[:, level][neighbors.numpy()])
                for level in range(self.positives.depth)
            ]
            yield self._score_nearest(block, is_same_by_level, neighbors, similarities)

    def _rank_by_top_k(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.embeddings)
        labels, gallery_labels = self._copy_labels_to_device()
        k = min(self._num_nearest, len(gallery))
        for block in _split_range(rows, size):
            distances = self._compute_distances(gallery, block)
            nearest, neighbors = k_nearest(distances, k, rows_at_once=max(size // SORT_FACTOR, 1))
            is_ranked = nearest < torch.inf  # excluded items have an infinite distance
            is_same_by_level = [
                (labels[block.start : block.stop, level, None] == gallery_labels[:, level][neighbors]) & is_ranked
                for level in range(self.positives.depth)
            ]
            yield self._score_nearest(block, is_same_by_level, neighbors, 0 - nearest)

    def _score_nearest(
        self, queries: range, is_same_by_level: Sequence[Tensor], neighbors: Tensor, similarities: Tensor
    ) -> Block:
        """Compute the metrics of queries whose nearest items (Q, K) are enough: are they of its class at each level?"""
        values: dict[str, Tensor] = {}
        for level, relevant in enumerate(is_same_by_level):
            counts = torch.from_numpy(self.positives.count(level)[queries.start : queries.stop]).to(relevant.device)
            named = [*self.config.compute_level(_find_first_ranks(relevant), counts, Kind.AT_K)]
            if self.config.select_kind(Kind.WITHIN_R):
                named += self.config.compute_level(positive_ranks(relevant), counts, Kind.WITHIN_R)
            values |= {f"level{level}/{name}": value for name, value in named}
        return Block(queries, values, neighbors[:, : self.neighbors], similarities[:, : self.neighbors])

    def _rank_by_threads(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.embeddings)
        memory = torch.empty(min(size, len(rows)), len(gallery))

        def rank_group(group: range, part: Tensor) -> Block:
            ranked = rank_rows(part, self.positives, group.start, self.neighbors)
            return self._score_ranking(group, part, ranked)

        with ThreadPoolExecutor(torch.get_num_threads(), initializer=_limit_to_one_thread) as threads:
            for block in _split_range(rows, size):
                distances = self._compute_distances(gallery, block, memory[: len(block)])
                groups = list(_split_range(block, choose_group_size(len(gallery))))
                parts = (distances[group.start - block.start :][: len(group)] for group in groups)
                yield from threads.map(rank_group, groups, parts)

    def _rank_by_sort(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.embeddings)
        labels, gallery_labels = self._copy_labels_to_device()
        for block in _split_range(rows, self._count_ranked_together(size)):
            distances = self._compute_distances(gallery, block)
            ranked = rank_block(distances, labels[block.start : block.stop], gallery_labels, self.neighbors)
            yield self._score_ranking(block, distances, ranked)

    def _count_ranked_together(self, size: int) -> int:
        """Return how many of the ``size`` queries of a block are ranked at a time on a device."""
        device = self.gallery.embeddings.device
        total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        allowed = int(GPU_SHARE * total) // (64 * len(self.gallery.labels))
        return max(size // SORT_FACTOR, min(size, allowed), 1)

    def _copy_labels_to_device(self) -> tuple[Tensor, Tensor]:
        device = self.gallery.embeddings.device
        return torch.tensor(self.queries.labels, device=device), torch.tensor(self.gallery.labels, device=device)

    def _compute_distances(self, gallery: Gallery, block: range, out: Tensor | None = None) -> Tensor:
        if self.reranked is not None:
            return self.reranked(block, out)
        queries = self.queries.embeddings[block.start : block.stop]
        excluded = torch.from_numpy(self.positives.excluded[block.start : block.stop]).to(queries.device)
        return gallery.distances(queries, excluded, out)

    def _score_ranking(self, queries: range, distances: Tensor, ranked: Rankings) -> Block:
        similarities = 0 - distances.gather(1, ranked.nearest)  # unlike -distances, never -0.0
        return Block(queries, compute_scores(ranked, self.config), ranked.nearest, similarities)


def _find_first_ranks(relevant: Tensor) -> Tensor:
    """Return the rank of each query's nearest positive, inf without one. (Q, k) bool -> (Q, 1)"""
    first = relevant.to(torch.uint8).argmax(dim=1, keepdim=True) + 1.0  # argmax returns the first of equal maxima
    return first.where(relevant.any(dim=1, keepdim=True), torch.inf)


def _split_range(rows: range, size: int) -> Iterator[range]:
    for first in range(rows.start, rows.stop, size):
        yield range(first, min(first + size, rows.stop))


def _limit_to_one_thread() -> None:
    """Limit torch to one thread within a thread of the pool, which already has one for each processor."""
    torch.get_num_threads()  # the first call in a thread sets the limit of that thread, so it comes before ours
    _find_thread_pools().limit(limits=1, user_api="openmp")


@cache
def _find_thread_pools() -> ThreadpoolController:
    """Find the libraries with threads of their own, for which all libraries of the process are looked through."""
    return ThreadpoolController()


LARGEST_BLOCK = 4096
"""The largest number of queries in a block, which is also the number in one of FAISS's matrix products."""


@dataclass(frozen=True)
class PerQuery:
    """The metrics and the nearest neighbors of single queries."""

    queries: npt.NDArray[np.int64]  # (Q,) indices among all queries
    values: dict[str, npt.NDArray[np.float64]]  # {metric: (Q,)}, NaN where the query has no positive
    neighbors: npt.NDArray[np.int64]  # (Q, k) gallery indices, nearest first, ties by index
    similarities: npt.NDArray[np.float32]  # (Q, k) cosines of the neighbors
    has_positive: dict[str, npt.NDArray[np.bool_]]  # {"level0", ...: (Q,) at the level, "": at any}

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
    """Compute the ranking metrics of `dml.evaluation.evaluate` for each query, and the nearest neighbors.

    Args:
        share: (rank, world) of this process, which ranks a part of the queries, see `query_share`.
        excluded: (Q, M) the gallery items, no two equal, that each query excludes, padded with -1; None excludes
            the query itself from a gallery of the queries, and nothing from another one.
        **settings: fields of `MetricConfig`. Metrics of clusters are ignored, as a query has no value of them.
    """
    config = MetricConfig(**settings)
    queries, items = check_query_and_gallery(query, query_labels, gallery, gallery_labels)
    return rank_items(queries, items, config, neighbors=neighbors, share=share, excluded=excluded)


def query_share(queries: int, gallery: int, share: tuple[int, int], memory: int = MetricConfig.memory) -> range:
    """Return the range of the queries that one of several processes ranks: whole blocks, as in a single process."""
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
    reranking: str | None = None,
) -> PerQuery:
    """Rank checked items, see `rank_queries`; a re-ranking changes the distances before."""
    if gallery is None and len(queries.labels) < 2:
        raise InputError("query: 1 item and no gallery, at least 2 are needed")
    gallery = queries if gallery is None and config.exclude_nearest else gallery
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
        reranked = _rerank(queries, gallery, positives, reranking) if reranking else None
        ranking = Ranking(queries, searched, positives, config, result.neighbors.shape[1], reranked)
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
    result.mask_queries_without_positives()
    return result


def _rerank(queries: Items, gallery: Items | None, positives: Positives, reranking: str) -> Distances:
    items = queries if gallery is None else gallery
    return RERANKINGS[reranking](Comparison(queries.embeddings, items.embeddings, positives.excluded, gallery is None))


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
