"""The ranking of blocks of queries, in one of four ways."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from dml.evaluation.metric_config import MetricConfig
from dml.evaluation.ranking.items import Items
from dml.evaluation.ranking.positives import Positives
from dml.evaluation.ranking.rankings import Rankings, rank_block, rank_rows
from dml.evaluation.ranking.scores import compute_scores
from dml.metrics.binary import positive_ranks
from dml.retrieval.gallery import Gallery
from dml.retrieval.reranking.gallery_comparison import Comparison
from dml.retrieval.search import Search
from dml.retrieval.top import k_nearest

SORT_FACTOR = 4
"""Blocks whose distances are sorted on a device are smaller by this factor. Sorting and all that follows takes 16 times
the memory of the distances, so such a block takes 4 times `MetricConfig.memory`: a GPU needs large blocks."""

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
    """The ranking of a gallery for some queries.

    Args:
        queries: items to rank the gallery for, on the gallery's device.
        gallery: items that are ranked; the queries if they are their own gallery.
        positives: positives of the queries in the gallery.
        config: metrics to compute.
        neighbors: number of nearest items to return for each query.
        comparison: distances that rank the gallery in place of those of the items; None for a plain ranking.
    """

    queries: Items
    gallery: Items
    positives: Positives
    config: MetricConfig
    neighbors: int
    comparison: Comparison | None = None

    def rank_blocks(self, rows: range, size: int) -> Iterator[Block]:
        """Rank the queries ``rows``, in blocks of ``size`` queries; FAISS searches if the nearest items are enough."""
        if self.queries.embeddings.is_cuda:
            return self._rank_by_top_k(rows, size) if self._needs_only_nearest else self._rank_by_sort(rows, size)
        return self._rank_by_search(rows, size) if self._needs_only_search else self._rank_by_threads(rows, size)

    @cached_property
    def _largest_r(self) -> int:
        """The largest number of positives of a query at any level, if a metric depends on the ranks up to it."""
        if not self.config.within_r_functions:
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
        return self._needs_only_nearest and same_number and self.comparison is None

    @property
    def _num_nearest(self) -> int:
        """The largest number of nearest items that a metric needs, or that are returned."""
        return max(self.config.largest_k, self.neighbors, self._largest_r)

    def _rank_by_search(self, rows: range, size: int) -> Iterator[Block]:
        search = Search(self.gallery.gallery_vectors(), self._num_nearest, self.positives.excluded)
        for block in _split_range(rows, size):
            similarities, neighbors = search(self.queries.query_vectors(slice(block.start, block.stop)), block.start)
            labels = self.queries.labels[block.start : block.stop]
            is_same_by_level = [
                torch.from_numpy(column[neighbors] == label[:, None])
                for column, label in zip(self.gallery.labels.T, labels.T, strict=True)
            ]
            yield self._score_nearest(
                block, is_same_by_level, torch.from_numpy(neighbors), torch.from_numpy(similarities)
            )

    def _rank_by_top_k(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.gallery_vectors())
        labels, gallery_labels = self._copy_labels_to_device()
        k = min(self._num_nearest, len(gallery))
        for block in _split_range(rows, size):
            distances = self._compute_distances(gallery, block)
            nearest, neighbors = k_nearest(distances, k, rows_at_once=max(size // SORT_FACTOR, 1))
            is_ranked = nearest < torch.inf  # excluded items have an infinite distance
            is_same_by_level = [
                (column[neighbors] == label[:, None]) & is_ranked
                for column, label in zip(gallery_labels.T, labels[block.start : block.stop].T, strict=True)
            ]
            yield self._score_nearest(block, is_same_by_level, neighbors, 0 - nearest)

    def _score_nearest(
        self, queries: range, is_same_by_level: Sequence[Tensor], neighbors: Tensor, similarities: Tensor
    ) -> Block:
        """Compute the metrics of some queries that their nearest items are enough for.

        Args:
            queries: range of the queries.
            is_same_by_level: one tensor (Q, K) for each level: whether the neighbours have the query's label.
            neighbors: nearest items (Q, K) of each query.
            similarities: cosine similarities (Q, K) of the nearest items.
        """
        values: dict[str, Tensor] = {}
        for level, relevant in enumerate(is_same_by_level):
            first = _find_first_ranks(relevant)
            functions = self.config.nearest_functions.items()
            values |= {f"level{level}/{name}": function(first) for name, function in functions}
            if self.config.within_r_functions:
                ranks = positive_ranks(relevant)
                counts = torch.from_numpy(self.positives.count(level)[queries.start : queries.stop]).to(ranks.device)
                for name, within_r in self.config.within_r_functions.items():
                    values[f"level{level}/{name}"] = within_r(ranks, counts)
        return Block(queries, values, neighbors[:, : self.neighbors], similarities[:, : self.neighbors])

    def _rank_by_threads(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.gallery_vectors())
        memory = torch.empty(min(size, len(rows)), len(gallery))
        with ThreadPoolExecutor(torch.get_num_threads(), initializer=_limit_to_one_thread) as threads:
            for block in _split_range(rows, size):
                distances = self._compute_distances(gallery, block, memory[: len(block)])
                groups = list(_split_range(block, choose_group_size(len(gallery))))
                parts = (distances[group.start - block.start :][: len(group)] for group in groups)
                yield from threads.map(self._rank_group, groups, parts)

    def _rank_group(self, queries: range, distances: Tensor) -> Block:
        return self._score_ranking(
            queries, distances, rank_rows(distances, self.positives, queries.start, self.neighbors)
        )

    def _rank_by_sort(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.gallery_vectors())
        labels, gallery_labels = self._copy_labels_to_device()
        for block in _split_range(rows, max(size // SORT_FACTOR, 1)):
            distances = self._compute_distances(gallery, block)
            ranked = rank_block(distances, labels[block.start : block.stop], gallery_labels, self.neighbors)
            yield self._score_ranking(block, distances, ranked)

    def _copy_labels_to_device(self) -> tuple[Tensor, Tensor]:
        device = self.gallery.embeddings.device
        return torch.tensor(self.queries.labels, device=device), torch.tensor(self.gallery.labels, device=device)

    def _compute_distances(self, gallery: Gallery, block: range, out: Tensor | None = None) -> Tensor:
        if self.comparison is not None:
            return self.comparison.distances(block, out)
        queries = self.queries.query_vectors(slice(block.start, block.stop))
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
