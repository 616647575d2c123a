"""The ranking of a gallery for queries, in blocks, and the metrics of each query."""

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
from dml.evaluation.ranks import Rankings, rank_block, rank_rows
from dml.metrics.binary import count_positives, positive_ranks
from dml.retrieval.gallery import Gallery
from dml.retrieval.reranking import RERANKINGS, Comparison, Distances
from dml.retrieval.rows import Embeddings
from dml.retrieval.search import BlockSearch, Search
from dml.runtime.errors import InputError

LARGEST_BLOCK = 4096
"""The largest number of queries in a block, which is also the number in one of FAISS's matrix products."""

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


def choose_block_size(gallery: int, memory: int) -> int:
    """Return how many queries are in a block, so that the memory holds their distances: whole groups, at least one."""
    group = choose_group_size(gallery)
    return min(max(memory // (4 * gallery), 1), LARGEST_BLOCK) // group * group or group


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
        """Rank the queries ``rows`` in blocks of ``size`` queries: by a search if the nearest items are enough."""
        if self._needs_only_search:
            return self._rank_by_search(rows, size)
        return (self._rank_on_device if self.queries.embeddings.is_cuda else self._rank_by_threads)(rows, size)

    @cached_property
    def _largest_r(self) -> int:
        """The largest number of positives of a query at any level, if a metric depends on the ranks up to it."""
        if not self.config.select_kind(Kind.WITHIN_R):
            return 0
        return max(int(self.positives.count(level).max(initial=0)) for level in range(self.positives.depth))

    @property
    def _num_nearest(self) -> int:
        """The largest number of nearest items that a metric needs, or that are returned."""
        return max(self.config.largest_k, self.neighbors, self._largest_r)

    @property
    def _needs_only_search(self) -> bool:
        """Whether a search finds enough items for all metrics, and the same number for each query."""
        excluded = self.positives.excluded
        same_number = self._num_nearest <= len(self.gallery.labels) - excluded.shape[1] or bool((excluded >= 0).all())
        needs_whole_ranking = self.config.select_kind(Kind.LEVEL, Kind.HIERARCHY) or self._largest_r > MOST_SEARCHED
        return same_number and not needs_whole_ranking and self.reranked is None

    def _rank_by_search(self, rows: range, size: int) -> Iterator[Block]:
        queries, config = self.queries.embeddings, self.config
        search_type = BlockSearch if queries.is_cuda else Search
        search = search_type(self.gallery.embeddings, self._num_nearest, self.positives.excluded)
        labels, gallery_labels = self._copy_labels_to_device()
        for block in _split_range(rows, size):
            part, scores = slice(block.start, block.stop), dict[str, Tensor]()
            similarities, neighbors = search(queries[part], block.start)
            for level in range(self.positives.depth):
                is_positive = labels[part, level, None] == gallery_labels[:, level][neighbors]
                counts = torch.from_numpy(self.positives.count(level)[part]).to(is_positive.device)
                named = [*config.compute_level(_find_first_ranks(is_positive), counts, Kind.AT_K)]
                if config.select_kind(Kind.WITHIN_R):
                    named += config.compute_level(positive_ranks(is_positive), counts, Kind.WITHIN_R)
                scores |= {f"level{level}/{name}": values for name, values in named}
            yield Block(block, scores, neighbors[:, : self.neighbors], similarities[:, : self.neighbors])

    def _rank_by_threads(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.embeddings)
        memory = torch.empty(min(size, len(rows)), len(gallery))

        def rank_group(group: range, part: Tensor) -> Block:
            return self._score_ranking(group, part, rank_rows(part, self.positives, group.start, self.neighbors))

        with ThreadPoolExecutor(torch.get_num_threads(), initializer=_limit_to_one_thread) as threads:
            for block in _split_range(rows, size):
                distances = self._compute_distances(gallery, block, memory[: len(block)])
                groups = list(_split_range(block, choose_group_size(len(gallery))))
                parts = (distances[group.start - block.start :][: len(group)] for group in groups)
                yield from threads.map(rank_group, groups, parts)

    def _rank_on_device(self, rows: range, size: int) -> Iterator[Block]:
        gallery, device = Gallery(self.gallery.embeddings), self.gallery.embeddings.device
        labels, gallery_labels = self._copy_labels_to_device()
        total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        allowed = int(GPU_SHARE * total) // (64 * len(gallery))
        for block in _split_range(rows, max(size // SORT_FACTOR, min(size, allowed), 1)):
            distances = self._compute_distances(gallery, block)
            ranked = rank_block(distances, labels[block.start : block.stop], gallery_labels, self.neighbors)
            yield self._score_ranking(block, distances, ranked)

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
        """Compute all ranking metrics from the ranks of all positives; no value is that of a query without any."""
        scores: dict[str, Tensor] = {}
        for level, ranks in enumerate(ranked.by_level):
            named = self.config.compute_level(ranks, count_positives(ranks), Kind.AT_K, Kind.WITHIN_R, Kind.LEVEL)
            scores |= {f"level{level}/{name}": values for name, values in named}
        if metrics := self.config.select_kind(Kind.HIERARCHY):
            counts = ranked.by_shared_levels.counts.double()
            counts[:, -1] += self.config.count_query
            arguments = len(queries), ranked.by_shared_levels, counts, self.config
            scores |= {metric.name: metric.compute_values(*arguments) for metric in metrics}
        similarities = 0 - distances.gather(1, ranked.nearest)  # unlike -distances, never -0.0
        return Block(queries, scores, ranked.nearest, similarities)


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
        """Join parts in their order; the joined shares of several processes equal the result of one, bit for bit.

        Where a part lacks another's metric the value is NaN, and a part with fewer neighbors gives fewer to all.
        """
        nearest = min(part.neighbors.shape[1] for part in parts)
        return PerQuery(
            np.concatenate([part.queries for part in parts]),
            _join_columns(parts, "values", np.nan),
            np.concatenate([part.neighbors[:, :nearest] for part in parts]),
            np.concatenate([part.similarities[:, :nearest] for part in parts]),
            _join_columns(parts, "has_positive", False),
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


def _join_columns(parts: Sequence[PerQuery], column: str, missing: float) -> Any:
    names = dict.fromkeys(name for part in parts for name in getattr(part, column))
    return {
        name: np.concatenate([getattr(part, column).get(name, np.full(len(part.queries), missing)) for part in parts])
        for name in names
    }


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
    block = choose_block_size(gallery, memory)
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
    is_own_gallery = gallery is None and not config.exclude_nearest
    items = queries if gallery is None else gallery
    size = len(items.labels)
    rows, block_size = (
        query_share(len(queries.labels), size, share, config.memory),
        choose_block_size(size, config.memory),
    )
    if config.exclude_nearest:
        excluded = find_nearest_items(queries, items, rows, block_size)
    positives = Positives(queries.labels, None if is_own_gallery else items.labels, excluded)
    max_excluded = positives.excluded.shape[1]
    if max_excluded >= size:
        raise InputError(f"gallery: a query excludes all of its {size} items, at least 1 must be left")
    neighbors, names = min(neighbors, size - max_excluded), [*config.ranking_names(positives.depth)]
    found = np.empty((len(rows), neighbors), dtype=np.int64), np.empty((len(rows), neighbors), dtype=np.float32)
    has_positive = positives.find_queries_with_any(rows)
    result = PerQuery(
        np.array(rows, dtype=np.int64), {name: np.empty(len(rows)) for name in names}, *found, has_positive
    )
    if not names and not neighbors:
        return result
    reranked = None
    if reranking:
        comparison = Comparison(queries.embeddings, items.embeddings, positives.excluded, is_own_gallery)
        reranked = RERANKINGS[reranking](comparison)
    for block in Ranking(queries, items, positives, config, neighbors, reranked).rank_blocks(rows, block_size):
        places = slice(block.queries.start - rows.start, block.queries.stop - rows.start)
        result.neighbors[places], result.similarities[places] = block.neighbors.cpu(), block.similarities.cpu()
        if block.scores:  # in one copy, because a GPU makes each wait
            scores = torch.stack([*block.scores.values()]).cpu().numpy()
            for name, values in zip(block.scores, scores, strict=True):
                result.values[name][places] = values
    for name, values in result.values.items():
        values[~has_positive[name.rpartition("/")[0]]] = np.nan
    return result
