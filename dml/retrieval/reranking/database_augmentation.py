"""Database-side augmentation: each gallery item becomes a weighted mean of itself and its nearest neighbours."""

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.errors import InputError
from dml.retrieval.reranking.gallery_comparison import Comparison, compare_among, find_neighbors
from dml.retrieval.reranking.ranges import join_ranges
from dml.retrieval.rows import unit_rows

Integers = npt.NDArray[np.int64]

PAIRS = 4096
"""Number of gallery items whose neighbours' vectors are in memory at a time."""


@dataclass(frozen=True)
class DatabaseAugmentation:
    r"""Database-side augmentation (Turcot and Lowe, 2009) with the weights of Gordo et al. (IJCV 2017).

    .. math:: x' = \frac{v}{\|v\|}, \qquad v = \sum_{r=0}^{n-1} \frac{n - r}{n} \, x_r

    where x_0 is the gallery item itself and x_1, x_2, ... are its nearest gallery items, so that n - 1 neighbours have
    a weight above 0.

    For each query, the items that it excludes are in no mean: the augmented items are those of the gallery without
    them, in which the next neighbours have moved up. In a gallery of the queries, no item holds a part of the query
    that it is compared with. So each query finds exactly what it would find in a gallery that it had never been in.

    Args:
        n: number of items in a mean, the item itself among them.

    Raises:
        InputError: if ``n`` is below 2, which would change nothing.
    """

    n: int = 10

    def __post_init__(self) -> None:
        if self.n < 2:
            raise InputError(f"dba: n={self.n} must be at least 2, the item itself and a neighbour")

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
        """Return the augmented vectors (P, D) of some items.

        Args:
            items: (P,) indices of the items.
            excluded: (P, M) items that are not in the mean, padded with -1; None for none.
        """
        parts = []
        for start in range(0, len(items), PAIRS):
            part = items[start : start + PAIRS]
            neighbors = self.lists[part]
            is_left = torch.ones_like(neighbors, dtype=torch.bool)
            if excluded is not None:
                is_left = (neighbors[:, :, None] != excluded[start : start + PAIRS, None]).all(dim=2)
            ranks = is_left.cumsum(dim=1)
            weights = ((self.n - ranks) / self.n).clamp(min=0.0) * is_left
            parts.append(self.gallery[part] + torch.einsum("pk,pkd->pd", weights, self.gallery[neighbors]))
        return unit_rows(torch.cat(parts), "augmented gallery")


@dataclass(frozen=True)
class AugmentedComparison(Comparison):
    """Queries and an augmented gallery, in which no mean holds an item that the query excludes.

    ``gallery`` is the augmented gallery of a query that excludes nothing. Few items differ from it for a query: those
    that have an excluded item among their neighbours.

    Args:
        neighbors: gallery before the augmentation, with its neighbours.
    """

    neighbors: NeighborLists = field(kw_only=True)

    def distances(self, rows: range, out: Tensor | None = None) -> Tensor:
        """Return the distances of some queries to the items that are augmented for them, see `Comparison`."""
        distances = super().distances(rows, out)
        first, last = np.searchsorted(self._changed_pairs[0], (rows.start, rows.stop))
        for start in range(first, last, PAIRS):
            part = slice(start, min(start + PAIRS, last))
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
