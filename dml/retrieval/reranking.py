"""What a re-ranking changes, the queries and the gallery that they search, and two steps that change the vectors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.retrieval.gallery import SORT_FACTOR, Gallery, k_nearest
from dml.retrieval.rows import unit_rows
from dml.runtime.errors import InputError

MEMORY = 2**27
"""Bytes of distances that a step holds at a time."""


@dataclass(frozen=True)
class Comparison:
    """Queries and the gallery that they search: what a step of a re-ranking changes.

    >>> comparison = Comparison(torch.eye(2), torch.eye(2), np.empty((2, 0), dtype=np.int64), False)
    >>> comparison.distances(range(2)).tolist()
    [[-1.0, 0.0], [0.0, -1.0]]

    Args:
        queries: (Q, D) float32 embeddings of unit length.
        gallery: (G, D) float32 embeddings of unit length, on the device of the queries.
        excluded: (Q, M) gallery items that each query excludes, padded with -1; its ranking has none of them.
        is_own_gallery: whether the gallery is the queries, each of which excludes itself.
        is_changed: whether a step has changed the queries or the gallery.
    """

    queries: Tensor
    gallery: Tensor
    excluded: npt.NDArray[np.int64]
    is_own_gallery: bool
    is_changed: bool = False

    @cached_property
    def _items(self) -> Gallery:
        return Gallery(self.gallery)

    def distances(self, rows: range, out: Tensor | None = None) -> Tensor:
        """Return the distances of some queries to all items, infinite for items that the query excludes.

        The distances are from -1 to 1. For the first steps they are negative cosine similarities.

        Args:
            rows: range of the queries.
            out: (B, G) memory for the result; None allocates it.

        Returns:
            (B, G) float32; smaller is nearer.
        """
        queries = self.queries[rows.start : rows.stop]
        excluded = torch.from_numpy(self.excluded[rows.start : rows.stop]).to(queries.device)
        return self._items.distances(queries, excluded, out)

    def gallery_vectors(self, queries: Tensor, items: Tensor) -> Tensor:
        """Return the vectors (P, D) that the gallery items (P,) have for the queries (P,), both given by index."""
        del queries  # an unchanged gallery is the same for all queries
        return self.gallery[items]

    def split(self) -> Iterator[range]:
        """Yield ranges of queries whose distances fit `MEMORY`."""
        size = max(MEMORY // (4 * len(self.gallery)), 1)
        for start in range(0, len(self.queries), size):
            yield range(start, min(start + size, len(self.queries)))

    def nearest(self, distances: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return distances (B, k) and indices (B, k) of the nearest items by distances (B, G), ties by index."""
        return k_nearest(distances, k, rows_at_once=max(len(distances) // SORT_FACTOR, 1))

    @property
    def num_ranked(self) -> int:
        """The number of items that each query has in its ranking, at least."""
        return len(self.gallery) - int(self.excluded.shape[1])


Reranker = Callable[[Comparison], Comparison]
"""A step of a re-ranking, or several."""


def find_neighbors(comparison: Comparison, k: int) -> Tensor:
    """Find the k nearest items of each query, on the device of the embeddings -> (Q, k) indices, ties by index."""
    blocks = [comparison.nearest(comparison.distances(rows), k)[1] for rows in comparison.split()]
    return torch.cat(blocks)


def compare_among(gallery: Tensor) -> Comparison:
    """Return the comparison of a gallery (G, D) with itself, in which each item excludes itself."""
    return Comparison(gallery, gallery, np.arange(len(gallery), dtype=np.int64)[:, None], is_own_gallery=True)


Integers = npt.NDArray[np.int64]


def join_ranges(firsts: Integers, lengths: Integers) -> Integers:
    """Concatenate the ranges first, first + 1, ..., first + length - 1. (T,), (T,) -> (sum of lengths,)"""
    before = np.cumsum(lengths) - lengths
    ranges: Integers = np.arange(lengths.sum()) + np.repeat(firsts - before, lengths)
    return ranges


VECTORS_AT_ONCE = 2**16
"""Number of neighbors whose vectors are in memory at a time."""


@dataclass(frozen=True)
class AlphaQueryExpansion:
    r"""Alpha query expansion (Radenovic, Tolias and Chum, "Fine-tuning CNN image retrieval with no human annotation").

    .. math:: q' = \frac{v}{\|v\|}, \qquad v = q + \sum_{i=1}^n \max(q^\top x_i, 0)^\alpha \, x_i

    where x_1, ..., x_n are the query's nearest gallery items. Items that the query excludes are none of them: in a
    gallery of the queries, the query itself counts once, with weight 1. The paper doesn't say what becomes of a
    negative similarity; here it counts 0.

    Args:
        n: number of neighbors, without the query itself; a smaller gallery gives all its items.
        alpha: exponent of the similarity, which is the weight of a neighbor; 0 is the plain mean.

    Raises:
        InputError: if ``n`` is below 1, or ``alpha`` below 0 or no finite number.
    """

    n: int = 10
    alpha: float = 3.0

    def __post_init__(self) -> None:
        if self.n < 1 or not 0 <= self.alpha < inf:
            raise InputError(f"alpha_qe: n={self.n} must be at least 1, alpha={self.alpha} a finite number, 0 or more")

    def __call__(self, comparison: Comparison) -> Comparison:
        """Expand the queries by the gallery as it is."""
        k, expanded = min(self.n, comparison.num_ranked), torch.empty_like(comparison.queries)
        for rows in comparison.split():
            distances, items = comparison.nearest(comparison.distances(rows), k)
            size = max(VECTORS_AT_ONCE // k, 1)
            for start in range(0, len(rows), size):
                part = slice(start, min(start + size, len(rows)))
                queries = torch.arange(rows.start + part.start, rows.start + part.stop, device=items.device)
                pairs = queries.repeat_interleave(k), items[part].flatten()
                neighbors = comparison.gallery_vectors(*pairs).reshape(len(queries), k, -1)
                expanded[queries] = expand_query(comparison.queries[queries], neighbors, -distances[part], self.alpha)
        return replace(
            comparison, queries=unit_rows(expanded, "expanded queries"), is_own_gallery=False, is_changed=True
        )


def expand_query(query: Tensor, neighbors: Tensor, similarities: Tensor, alpha: float) -> Tensor:
    """Add neighbors (..., n, D) to queries (..., D), weighted by their cosines (..., n), see `AlphaQueryExpansion`.

    >>> expand_query(torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1.0]]), torch.tensor([0.5]), alpha=2.0).tolist()
    [1.0, 0.25]

    The sums are not of unit length.
    """
    return query + torch.einsum("...n,...nd->...d", similarities.clamp(min=0.0) ** alpha, neighbors)


ITEMS_AT_ONCE = 4096
"""Number of gallery items whose neighbors' vectors are in memory at a time."""


@dataclass(frozen=True)
class DatabaseAugmentation:
    r"""Database-side augmentation (Turcot and Lowe, 2009) with the weights of Gordo et al. (IJCV 2017).

    .. math:: x' = \frac{v}{\|v\|}, \qquad v = \sum_{r=0}^{n-1} \frac{n - r}{n} \, x_r

    where x_0 is the gallery item itself and x_1, x_2, ... are its nearest gallery items, so that n - 1 neighbors have
    a weight above 0.

    For each query, the items that it excludes are in no mean: the augmented items are those of the gallery without
    them, in which the next neighbors have moved up. In a gallery of the queries, no item holds a part of the query
    that it is compared with. So each query finds exactly what it would find in a gallery that it had never been in.

    Args:
        n: number of items in a mean, the item itself among them.

    Raises:
        InputError: if ``n`` is below 2, which would change nothing.
    """

    n: int = 10

    def __post_init__(self) -> None:
        if self.n < 2:
            raise InputError(f"dba: n={self.n} must be at least 2, the item itself and a neighbor")

    def __call__(self, comparison: Comparison) -> Comparison:
        """Augment the gallery."""
        if isinstance(comparison, AugmentedComparison):
            raise InputError("dba: the gallery is augmented already; each step is taken once")
        gallery = comparison.gallery
        length = min(self.n - 1 + comparison.excluded.shape[1], len(gallery) - 1)
        lists = find_neighbors(compare_among(gallery), length) if length else torch.empty(1, 0, dtype=torch.int64)
        neighbors = NeighborLists(gallery, lists, self.n)
        items = torch.arange(len(gallery), device=gallery.device)
        values = {field.name: getattr(comparison, field.name) for field in fields(Comparison)}
        values |= {"gallery": neighbors.augment(items), "is_own_gallery": False, "is_changed": True}
        return AugmentedComparison(**values, neighbors=neighbors)


class NeighborLists(NamedTuple):
    """A gallery and the nearest items of each of its items.

    Args:
        gallery: (G, D) vectors before the augmentation.
        lists: (G, K) the nearest other items of each item, nearest first; K is larger than the number that has a
            weight, by as many as a query excludes.
        n: number of items in a mean, see `DatabaseAugmentation`.
    """

    gallery: Tensor
    lists: Tensor
    n: int

    def augment(self, items: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Return the augmented vectors (P, D) of items (P,), whose means lack the items (P, M) that are excluded."""
        parts = []
        for start in range(0, len(items), ITEMS_AT_ONCE):
            part = items[start : start + ITEMS_AT_ONCE]
            neighbors = self.lists[part]
            is_left = torch.ones_like(neighbors, dtype=torch.bool)
            if excluded is not None:
                is_left = (neighbors[:, :, None] != excluded[start : start + ITEMS_AT_ONCE, None]).all(dim=2)
            ranks = is_left.cumsum(dim=1)
            weights = ((self.n - ranks) / self.n).clamp(min=0.0) * is_left
            parts.append(self.gallery[part] + torch.einsum("pk,pkd->pd", weights, self.gallery[neighbors]))
        return unit_rows(torch.cat(parts), "augmented gallery")


@dataclass(frozen=True)
class AugmentedComparison(Comparison):
    """Queries and an augmented gallery, in which no mean holds an item that the query excludes.

    ``gallery`` is the augmented gallery of a query that excludes nothing. Few items differ from it for a query: those
    that have an excluded item among their neighbors.
    """

    neighbors: NeighborLists = field(kw_only=True)

    def distances(self, rows: range, out: Tensor | None = None) -> Tensor:
        """Return the distances of some queries to the items that are augmented for them, see `Comparison`."""
        distances = super().distances(rows, out)
        first, last = np.searchsorted(self._changed_pairs[0], (rows.start, rows.stop))
        for start in range(first, last, ITEMS_AT_ONCE):
            part = slice(start, min(start + ITEMS_AT_ONCE, last))
            queries, items = (torch.from_numpy(pair[part]).to(distances.device) for pair in self._changed_pairs)
            products = (self.gallery_vectors(queries, items) * self.queries[queries]).sum(dim=1)
            distances[queries - rows.start, items] = -products
        return distances

    def gallery_vectors(self, queries: Tensor, items: Tensor) -> Tensor:
        """Return the vectors (P, D) of items that are augmented for queries, see `Comparison`."""
        excluded = torch.from_numpy(self.excluded[queries.cpu().numpy()]).to(items.device)
        return self.neighbors.augment(items, excluded)

    @cached_property
    def _changed_pairs(self) -> tuple[Integers, Integers]:
        """The queries (P,), rising, and the items (P,) that are not the same for the query as for others."""
        weighted, num_items = self.neighbors.lists[:, : self.neighbors.n - 1].cpu().numpy(), len(self.gallery)
        excluding, columns = np.nonzero(self.excluded >= 0)
        excluded = self.excluded[excluding, columns]
        order = np.argsort(excluded, kind="stable")
        bounds = [np.searchsorted(excluded[order], weighted.ravel(), side) for side in ("left", "right")]
        numbers = bounds[1] - bounds[0]
        items = np.repeat(np.arange(weighted.size) // max(weighted.shape[1], 1), numbers)
        keys = np.unique(excluding[order[join_ranges(bounds[0], numbers)]] * num_items + items)
        keys = keys[~np.isin(keys, excluding * num_items + excluded)]  # these items are not in the ranking
        return keys // num_items, keys % num_items
