"""Re-rankings: a query's ranking after another look at its nearest items.

A re-ranking is a function of a `Comparison` that returns new distances. Its numbers are those of the papers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.retrieval.gallery import SORT_FACTOR, Gallery, k_nearest
from dml.retrieval.rows import unit_rows

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

MEMORY, MOST_ROWS = 2**27, 4096
"""Bytes of distances, and number of queries, that a step holds at a time."""

ROWS = 256
"""Number of items whose neighbors' neighbors are in memory at a time."""

NONE = -1
"""The index in place of an item that is not in a list."""


@dataclass(frozen=True)
class Comparison:
    """Queries (Q, D) and the gallery (G, D) that they search, float32 of unit length and on one device.

    >>> comparison = Comparison(torch.eye(2), torch.eye(2), np.empty((2, 0), dtype=np.int64), False)
    >>> comparison.distances(range(2)).tolist()
    [[-1.0, 0.0], [0.0, -1.0]]

    Args:
        excluded: (Q, M) gallery items that each query excludes, padded with -1; its ranking has none of them.
        is_own_gallery: whether the gallery is the queries, each of which excludes itself.
    """

    queries: Tensor
    gallery: Tensor
    excluded: Integers
    is_own_gallery: bool

    @cached_property
    def _items(self) -> Gallery:
        return Gallery(self.gallery)

    def distances(self, rows: range, out: Tensor | None = None) -> Tensor:
        """Return negative cosine similarities of some queries to all items (B, G), infinite to excluded ones."""
        queries = self.queries[rows.start : rows.stop]
        excluded = torch.from_numpy(self.excluded[rows.start : rows.stop]).to(queries.device)
        return self._items.distances(queries, excluded, out)

    def find_nearest(self, k: int) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Yield blocks of queries, their distances (B, G), and those (B, k) and indices (B, k) of the nearest items."""
        size = min(max(MEMORY // (4 * len(self.gallery)), 1), MOST_ROWS)
        for start in range(0, len(self.queries), size):
            rows = range(start, min(start + size, len(self.queries)))
            distances = self.distances(rows)
            nearest = k_nearest(distances, k, rows_at_once=max(len(rows) // SORT_FACTOR, 1))
            yield slice(rows.start, rows.stop), distances, *nearest

    @property
    def num_ranked(self) -> int:
        """The number of items that each query has in its ranking, at least."""
        return len(self.gallery) - int(self.excluded.shape[1])


Distances = Callable[..., Tensor]
"""A function like `Comparison.distances`; the smaller a distance, the nearer the item."""


def compare_among(gallery: Tensor) -> Comparison:
    """Return the comparison of a gallery (G, D) with itself, in which each item excludes itself."""
    return Comparison(gallery, gallery, np.arange(len(gallery), dtype=np.int64)[:, None], is_own_gallery=True)


def alpha_qe(comparison: Comparison, n: int = 10, alpha: float = 3.0) -> Distances:
    r"""Alpha query expansion (Radenovic, Tolias and Chum, "Fine-tuning CNN image retrieval with no human annotation").

    .. math:: q' = \frac{v}{\|v\|}, \qquad v = q + \sum_{i=1}^n \max(q^\top x_i, 0)^\alpha \, x_i

    where x_1, ..., x_n are the query's nearest gallery items, none of which it excludes: in a gallery of the queries,
    the query itself counts once. The paper doesn't say what becomes of a negative similarity; here it counts 0.

    Args:
        n: number of neighbors, without the query itself; a smaller gallery gives all its items.
        alpha: exponent of the similarity, which is the weight of a neighbor; 0 is the plain mean.
    """
    expanded = torch.empty_like(comparison.queries)
    for rows, _, distances, items in comparison.find_nearest(min(n, comparison.num_ranked)):
        weights = (-distances).clamp(min=0.0) ** alpha
        added = torch.einsum("bn,bnd->bd", weights, comparison.gallery[items])
        expanded[rows] = comparison.queries[rows] + added
    return replace(comparison, queries=unit_rows(expanded, "expanded queries")).distances


def k_reciprocal(comparison: Comparison, k1: int = 20, k2: int = 6, distance_weight: float = 0.3) -> Distances:
    r"""k-reciprocal re-ranking (Zhong et al., "Re-ranking person re-identification with k-reciprocal encoding", 2017).

    The distance of a query p and an item g is :math:`(1 - w) \, d_J(p, g) + w \, d(p, g)` (Eq. 12). d is the squared
    Euclidean distance, divided by the largest one of the query, as in the authors' release. d_J is the Jaccard distance
    of the encodings V, which are sparse vectors with an entry for each item of the gallery:

    - R(p, k) are the k nearest items that have p among their own k nearest ones (Eq. 2), and p itself.
    - R*(p) joins R(p, k1) with R(q, k1 / 2) of each q in R(p, k1) for which more than 2/3 of R(q, k1 / 2) is in
      R(p, k1) (Eq. 3).
    - V_p is proportional to exp(-d(p, g)) for g in R*(p), and 0 elsewhere (Eq. 7); its entries sum up to 1, as in the
      release.
    - Each V is replaced by the mean of those of the k2 nearest items, itself among them (Eq. 11).

    If the gallery is the queries, this is the release with all items as gallery. With a gallery of its own, it differs
    in one thing: the release lets queries be neighbors of other queries. Here the lists and encodings of the gallery
    are those of the gallery alone, a query is among the k nearest items of g if it is at most as far from g as the k-th
    of them, and no query changes the ranking of another one.

    The encodings take O(N k1^2) memory at most, and far less in practice: no matrix of all pairs is held.

    Args:
        k1: number of neighbors that may be reciprocal; a smaller gallery gives as many as all queries have.
        k2: number of items in the mean of encodings, at most k1 + 1; 1 takes each as it is.
        distance_weight: the weight w of the original distance, lambda in the paper.
    """
    items = comparison.gallery
    gallery = _find_neighborhoods(compare_among(items), min(k1, len(items) - 1))
    halves = _find_reciprocal(gallery.lists[:, : round(k1 / 2) + 1])
    own_codes = _encode(gallery, _find_reciprocal(gallery.lists), halves, items, items)
    mean_codes = _sum_rows(own_codes, gallery.lists[:, :k2]) / min(k2, gallery.lists.shape[1])
    queries, codes = gallery, mean_codes
    if not comparison.is_own_gallery:
        queries = _find_neighborhoods(comparison, min(k1, comparison.num_ranked))
        is_reciprocal = np.ones(queries.lists.shape, dtype=np.bool_)
        if gallery.distances.shape[1] == k1:  # otherwise a query is among the k nearest items of any item
            is_reciprocal[:, 1:] = queries.distances <= gallery.distances[queries.lists[:, 1:], -1]
        reciprocal = np.where(is_reciprocal, queries.lists, NONE)
        neighbors = queries.lists[:, 1:k2]
        codes = _encode(queries, reciprocal, halves, comparison.queries, items)
        codes = (codes + _sum_rows(own_codes, neighbors)) / (neighbors.shape[1] + 1)
    inverted, farthest = mean_codes.T.tocsr(), torch.from_numpy(queries.farthest).to(items.device)

    def compute_distances(rows: range, out: Tensor | None = None) -> Tensor:
        distances = comparison.distances(rows, out)
        is_excluded = distances == torch.inf
        distances.mul_(2).add_(2).clamp_(min=0.0).mul_((distance_weight / farthest[rows.start : rows.stop])[:, None])
        for position, row in enumerate(rows):
            jaccard = torch.from_numpy(_jaccard_distances(codes, inverted, row)).to(distances.device)
            distances[position] += (1 - distance_weight) * jaccard
        return distances.masked_fill_(is_excluded, torch.inf)  # a weight of 0 has made them NaN

    return compute_distances


RERANKINGS: dict[str, Callable[[Comparison], Distances]] = {"alpha_qe": alpha_qe, "k_reciprocal": k_reciprocal}
"""The re-rankings by name."""


class _Neighborhoods(NamedTuple):
    lists: Integers  # (N, k + 1) an item itself, G if it isn't in the gallery, and then the k nearest items
    distances: Floats  # (N, k) negative cosine similarities of the k items
    farthest: Floats  # (N,) the largest squared Euclidean distance of an item to the gallery, above 0


def _find_neighborhoods(comparison: Comparison, k: int) -> _Neighborhoods:
    """Find the k nearest items of each query."""
    count, size = len(comparison.queries), len(comparison.gallery)
    lists = np.empty((count, k + 1), dtype=np.int64)
    lists[:, 0] = np.arange(count) if comparison.is_own_gallery else size
    nearest, farthest = np.empty((count, k), dtype=np.float32), np.empty(count, dtype=np.float32)
    for rows, distances, values, items in comparison.find_nearest(k):
        nearest[rows], lists[rows, 1:] = values.cpu(), items.cpu()
        farthest[rows] = distances.masked_fill_(distances == torch.inf, -1.0).amax(dim=1).cpu()
    # copies of one embedding are at distance 0 from each other, or nearly so
    return _Neighborhoods(lists, nearest, np.maximum(2 + 2 * farthest, np.finfo(np.float32).eps))


def _find_reciprocal(lists: Integers) -> Integers:
    """Return lists (N, k + 1) of items and their neighbors, with -1 in place of items that aren't reciprocal."""
    is_reciprocal = [
        (lists[lists[start : start + ROWS]] == np.arange(start, min(start + ROWS, len(lists)))[:, None, None]).any(-1)
        for start in range(0, len(lists), ROWS)
    ]
    return np.where(np.concatenate(is_reciprocal), lists, NONE)


def _encode(
    neighborhoods: _Neighborhoods, reciprocal: Integers, halves: Integers, items: Tensor, gallery: Tensor
) -> Any:
    """Return the encodings V (N, G + 1), before the mean of Eq. 11, of items with R(i, k1), and R(i, k1 / 2) of all."""
    from scipy.sparse import csr_matrix  # late: Lightning imports the more of scipy if a part of it is loaded

    width = len(gallery) + 1
    rows, columns, weights = [], [], []
    for start in range(0, len(items), ROWS):
        part = _expand(reciprocal[start : start + ROWS], halves, width)
        part_rows, part_columns = part // width + start, part % width
        is_own = part_columns == neighborhoods.lists[part_rows, 0]
        pairs = (torch.from_numpy(indices) for indices in (part_rows, np.where(is_own, 0, part_columns)))
        vectors, compared = (table[pair.to(table.device)] for table, pair in zip((items, gallery), pairs, strict=True))
        distances = (2 - 2 * (vectors * compared).sum(dim=1)).clamp(min=0.0).cpu().numpy()
        rows.append(part_rows)
        columns.append(part_columns)
        weights.append(np.exp(-np.where(is_own, 0, distances) / neighborhoods.farthest[part_rows]))
    row, weight = np.concatenate(rows), np.concatenate(weights)
    weight = (weight / np.bincount(row, weight, minlength=len(items))[row]).astype(np.float32)
    return csr_matrix((weight, (row, np.concatenate(columns))), shape=(len(items), width))


def _expand(reciprocal: Integers, halves: Integers, width: int) -> Integers:
    """Return R*(i) of some items as keys: position of the item times ``width``, plus the neighbor (Eq. 3)."""
    candidates = reciprocal[:, 1:]
    members = halves[np.maximum(candidates, 0)]
    is_member = (members >= 0) & (candidates >= 0)[:, :, None]
    is_shared = (members[..., None] == reciprocal[:, None, None]).any(axis=-1) & is_member
    joined = is_member & (3 * is_shared.sum(axis=2) > 2 * is_member.sum(axis=2))[:, :, None]
    items = np.broadcast_to(np.arange(len(reciprocal))[:, None, None], members.shape)
    rows, columns = np.nonzero(reciprocal >= 0)
    keys = [rows * width + reciprocal[rows, columns], items[joined] * width + members[joined]]
    return np.unique(np.concatenate(keys)).astype(np.int64)


def _sum_rows(codes: Any, lists: Integers) -> Any:
    """Sum up the encodings (G, G + 1) of the items in each list (N, k) -> (N, G + 1)."""
    from scipy.sparse import csr_matrix

    starts = np.arange(len(lists) + 1) * lists.shape[1]
    ones = np.ones(lists.size, dtype=np.float32)
    return csr_matrix((ones, lists.ravel(), starts), shape=(len(lists), codes.shape[0])) @ codes


def _jaccard_distances(codes: Any, inverted: Any, query: int) -> Floats:
    """Return the Jaccard distances (G,) of a query's encoding to those of all items, which are transposed (Eq. 10)."""
    entries = slice(*codes.indptr[query : query + 2])
    columns, weights = codes.indices[entries], codes.data[entries]
    firsts = inverted.indptr[columns].astype(np.int64)
    numbers = inverted.indptr[columns + 1] - firsts
    positions = np.arange(numbers.sum()) + np.repeat(firsts - (np.cumsum(numbers) - numbers), numbers)
    smaller = np.minimum(inverted.data[positions], np.repeat(weights, numbers))
    shared: Any = np.bincount(inverted.indices[positions], smaller, minlength=inverted.shape[1])
    distances: Floats = (1 - shared / (2 - shared)).astype(np.float32)
    return distances
