"""Ranks blocks of queries, in one of four ways."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from dml.evaluation.items import Items
from dml.evaluation.positives import Positives
from dml.evaluation.ranked import Ranked, rank_block, rank_rows
from dml.evaluation.scores import Wanted, scores
from dml.metrics.binary import recall_at_k
from dml.retrieval.gallery import Gallery
from dml.retrieval.search import Search
from dml.retrieval.top import k_nearest

SORTED = 16  # times the memory of distances that sorting them on a device takes, with all that is made of them


def group_size(gallery: int) -> int:
    """How many queries a thread ranks at a time: so many that their metrics take longer than torch's calls do.

    Blocks are whole groups: the sums over a group's padded rows then round alike whatever the block.
    """
    return min(max(2**22 // gallery, 1), 64)


class Block(NamedTuple):
    """Some queries in turn: their metrics {name: (Q,)}, nearest items (Q, k) and cosines (Q, k)."""

    queries: range
    scores: dict[str, Tensor]
    neighbors: Tensor
    similarities: Tensor


@dataclass(frozen=True)
class Ranking:
    """Queries to rank a gallery for.

    Args:
        queries: on one device with the gallery.
        gallery: the queries themselves if they are their own.
        positives: of the queries.
        wanted: metrics.
        neighbors: how many of the nearest items to give.
    """

    queries: Items
    gallery: Items
    positives: Positives
    wanted: Wanted
    neighbors: int

    def blocks(self, rows: range, size: int) -> Iterator[Block]:
        """The queries `rows`, the distances of `size` of them to the gallery in memory at a time.

        The nearest neighbours alone are FAISS's work.
        """
        if self.queries.embeddings.is_cuda:
            return self._by_top_k(rows, size) if self.wanted.recall_alone else self._by_sort(rows, size)
        return self._by_search(rows, size) if self._takes_few_items else self._by_threads(rows, size)

    @property
    def _takes_few_items(self) -> bool:
        """Whether lists of the nearest items are enough, and of the same length for all queries."""
        excluded = self.positives.excluded
        same_length = self._longest <= len(self.gallery.labels) - excluded.shape[1] or bool((excluded >= 0).all())
        return self.wanted.recall_alone and same_length

    @property
    def _longest(self) -> int:
        """How many of the nearest items recall and the neighbours take."""
        return max((*self.wanted.recalls, self.neighbors))

    def _by_search(self, rows: range, size: int) -> Iterator[Block]:
        search = Search(self.gallery.embeddings, self._longest, self.positives.excluded)
        for block in _parts(rows, size):
            similarities, neighbors = search(self.queries.embeddings[block.start : block.stop], block.start)
            labels = self.queries.labels[block.start : block.stop]
            same = [
                torch.from_numpy(column[neighbors] == label[:, None])
                for column, label in zip(self.gallery.labels.T, labels.T, strict=True)
            ]
            yield self._recalled(block, same, torch.from_numpy(neighbors), torch.from_numpy(similarities))

    def _by_top_k(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.embeddings)
        labels, gallery_labels = self._labels_on_device()
        k = min(self._longest, len(gallery))
        for block in _parts(rows, size):
            distances = self._distances(gallery, block)
            nearest, neighbors = k_nearest(distances, k, rows_at_once=max(size // SORTED, 1))
            listed = nearest < torch.inf  # an excluded item is not
            same = [
                (column[neighbors] == label[:, None]) & listed
                for column, label in zip(gallery_labels.T, labels[block.start : block.stop].T, strict=True)
            ]
            yield self._recalled(block, same, neighbors, 0 - nearest)

    def _recalled(self, queries: range, same: Sequence[Tensor], neighbors: Tensor, similarities: Tensor) -> Block:
        """The block of some queries, of each level whether their neighbours (Q, K) have the query's label (Q, K)."""
        values: dict[str, Tensor] = {}
        for level, relevant in enumerate(same):
            first = _first_ranks(relevant)
            values |= {f"level{level}/recall@{k}": recall_at_k(first, k) for k in self.wanted.recalls}
        return Block(queries, values, neighbors[:, : self.neighbors], similarities[:, : self.neighbors])

    def _by_threads(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.embeddings)
        memory = torch.empty(min(size, len(rows)), len(gallery))
        with ThreadPoolExecutor(torch.get_num_threads(), initializer=_keep_to_one_thread) as threads:
            for block in _parts(rows, size):
                distances = self._distances(gallery, block, memory[: len(block)])
                groups = list(_parts(block, group_size(len(gallery))))
                parts = (distances[group.start - block.start :][: len(group)] for group in groups)
                yield from threads.map(self._group, groups, parts)

    def _group(self, queries: range, distances: Tensor) -> Block:
        return self._scored(queries, distances, rank_rows(distances, self.positives, queries.start, self.neighbors))

    def _by_sort(self, rows: range, size: int) -> Iterator[Block]:
        gallery = Gallery(self.gallery.embeddings)
        labels, gallery_labels = self._labels_on_device()
        for block in _parts(rows, max(size // SORTED, 1)):
            distances = self._distances(gallery, block)
            ranked = rank_block(distances, labels[block.start : block.stop], gallery_labels, self.neighbors)
            yield self._scored(block, distances, ranked)

    def _labels_on_device(self) -> tuple[Tensor, Tensor]:
        device = self.gallery.embeddings.device
        return torch.tensor(self.queries.labels, device=device), torch.tensor(self.gallery.labels, device=device)

    def _distances(self, gallery: Gallery, block: range, out: Tensor | None = None) -> Tensor:
        queries = self.queries.embeddings[block.start : block.stop]
        excluded = torch.from_numpy(self.positives.excluded[block.start : block.stop]).to(queries.device)
        return gallery.distances(queries, excluded, out)

    def _scored(self, queries: range, distances: Tensor, ranked: Ranked) -> Block:
        similarities = 0 - distances.gather(1, ranked.nearest)  # 0 - 0 is 0, where -0 is another number
        return Block(queries, scores(ranked, self.wanted), ranked.nearest, similarities)


def _first_ranks(relevant: Tensor) -> Tensor:
    """The rank of each query's nearest positive, all that recall looks at; inf without one. (Q, k) bool -> (Q, 1)"""
    first = relevant.to(torch.uint8).argmax(dim=1, keepdim=True) + 1.0  # of equal ones torch gives the first
    return first.where(relevant.any(dim=1, keepdim=True), torch.inf)


def _parts(rows: range, size: int) -> Iterator[range]:
    for first in range(rows.start, rows.stop, size):
        yield range(first, min(first + size, rows.stop))


def _keep_to_one_thread() -> None:
    """Keeps torch from starting threads within a thread of a pool that has one for each processor."""
    torch.get_num_threads()  # torch gives a thread its limit when that is first asked for
    threadpool_limits(1, user_api="openmp")
