"""k-reciprocal re-ranking: items are near each other if they have the same mutual neighbors."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.retrieval.reranking import Comparison, compare_among, join_ranges
from dml.runtime.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

NONE = -1
"""The index in place of an item that is not in a list."""

ROWS = 256
"""Number of items whose neighbors' neighbors are in memory at a time."""


@dataclass(frozen=True)
class KReciprocal:
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

    Raises:
        InputError: if k1 or k2 is below 1, k2 is too large, or the weight isn't between 0 and 1.
    """

    k1: int = 20
    k2: int = 6
    distance_weight: float = 0.3

    def __post_init__(self) -> None:
        if self.k1 < 1 or not 1 <= self.k2 <= self.k1 + 1 or not 0 <= self.distance_weight <= 1:
            raise InputError(
                f"k_reciprocal: k1={self.k1} must be at least 1, k2={self.k2} from 1 to k1 + 1, distance_weight="
                f"{self.distance_weight} from 0 to 1"
            )

    def __call__(self, comparison: Comparison) -> Comparison:
        """Encode the gallery and the queries.

        Raises:
            InputError: if another step came before, and queries exclude items, as in a gallery of their own: the
                gallery would be another one for each query. Or if the gallery holds fewer than two items.
        """
        if comparison.is_changed and comparison.excluded.shape[1]:
            raise InputError(
                "k_reciprocal: behind another step it needs queries that are not in the gallery; take it alone"
            )
        items = comparison.gallery
        if len(items) < 2:
            raise InputError(f"k_reciprocal: a gallery of {len(items)} item; at least 2 are needed")
        gallery = find_neighborhoods(compare_among(items), min(self.k1, len(items) - 1))
        halves = gallery.find_reciprocal(round(self.k1 / 2))
        gallery_codes = _encode(gallery, gallery.find_reciprocal(self.k1), halves, items, items)
        mean_codes = _sum_rows(gallery_codes, gallery.lists[:, : self.k2]) / min(self.k2, gallery.lists.shape[1])
        queries, codes = gallery, mean_codes
        if not comparison.is_own_gallery:
            queries = find_neighborhoods(comparison, min(self.k1, comparison.num_ranked), own_index=len(items))
            own_codes = _encode(queries, self._find_reciprocal(queries, gallery), halves, comparison.queries, items)
            k2 = min(self.k2, queries.lists.shape[1])
            codes = (own_codes + _sum_rows(gallery_codes, queries.lists[:, 1:k2])) / k2
        values = {field.name: getattr(comparison, field.name) for field in fields(Comparison)}
        return EncodedComparison(
            **values | {"is_changed": True},
            codes=codes,
            inverted=mean_codes.T.tocsr(),
            farthest=torch.from_numpy(queries.farthest).to(items.device),
            distance_weight=self.distance_weight,
        )

    def _find_reciprocal(self, queries: "Neighborhoods", gallery: "Neighborhoods") -> Integers:
        """Return the lists of queries that aren't in the gallery, with -1 in place of items that aren't reciprocal."""
        is_reciprocal = np.ones(queries.lists.shape, dtype=np.bool_)
        if gallery.distances.shape[1] == self.k1:  # otherwise a query is among the k nearest items of any item
            is_reciprocal[:, 1:] = queries.distances <= gallery.distances[queries.lists[:, 1:], -1]
        return np.where(is_reciprocal, queries.lists, NONE)


class Neighborhoods(NamedTuple):
    """The nearest gallery items of some items.

    Args:
        lists: (N, k + 1) the item itself and then the k nearest items.
        distances: (N, k) float32 negative cosine similarities of the k items.
        farthest: (N,) float32 the largest squared Euclidean distance of each item to the gallery, above 0.
    """

    lists: Integers
    distances: Floats
    farthest: Floats

    def find_reciprocal(self, k: int) -> Integers:
        """Find R(i, k) of each item -> (N, k + 1) the lists, with -1 in place of items that aren't reciprocal."""
        lists = self.lists[:, : k + 1]
        is_reciprocal = [
            (lists[lists[start : start + ROWS]] == np.arange(start, min(start + ROWS, len(lists)))[:, None, None]).any(
                -1
            )
            for start in range(0, len(lists), ROWS)
        ]
        return np.where(np.concatenate(is_reciprocal), lists, NONE)


def find_neighborhoods(comparison: Comparison, k: int, own_index: int | None = None) -> Neighborhoods:
    """Find the k nearest items of each query, and how far the farthest item is.

    ``own_index`` stands for a query itself; None if the queries are the gallery.
    """
    lists = np.empty((len(comparison.queries), k + 1), dtype=np.int64)
    lists[:, 0] = np.arange(len(lists)) if own_index is None else own_index
    nearest = np.empty((len(lists), k), dtype=np.float32)
    farthest = np.empty(len(lists), dtype=np.float32)
    for rows in comparison.split():
        part, distances = slice(rows.start, rows.stop), comparison.distances(rows)
        values, items = comparison.nearest(distances, k)
        nearest[part], lists[part, 1:] = values.cpu(), items.cpu()
        farthest[part] = distances.masked_fill_(distances == torch.inf, -1.0).amax(dim=1).cpu()
    # copies of one embedding are at distance 0 from each other, or nearly so
    return Neighborhoods(lists, nearest, np.maximum(2 + 2 * farthest, np.finfo(np.float32).eps))


def _encode(
    neighborhoods: Neighborhoods, reciprocal: Integers, halves: Integers, items: Tensor, gallery: Tensor
) -> "csr_matrix":
    """Return the encodings V of some items, before the mean of Eq. 11, see `KReciprocal`.

    Args:
        neighborhoods: neighbors of the N items.
        reciprocal: (N, k1 + 1) R(i, k1) of each item, padded with -1; the index G is of an item outside the gallery.
        halves: (G, k1 / 2 + 1) R(i, k1 / 2) of each gallery item, padded with -1.
        items: (N, D) embeddings of the items.
        gallery: (G, D) embeddings of the gallery.

    Returns:
        (N, G + 1) float32, whose rows sum up to 1.
    """
    width = len(gallery) + 1
    rows, columns, weights = [], [], []
    for start in range(0, len(items), ROWS):
        part = _expand(reciprocal[start : start + ROWS], halves, width)
        part_rows, part_columns = part // width + start, part % width
        is_own = part_columns == neighborhoods.lists[part_rows, 0]
        pairs = (torch.from_numpy(indices) for indices in (part_rows, np.where(is_own, 0, part_columns)))
        vectors, compared = (
            table[index.to(table.device)] for table, index in zip((items, gallery), pairs, strict=True)
        )
        distances = (2 - 2 * (vectors * compared).sum(dim=1)).clamp(min=0.0).cpu().numpy()
        distances = np.where(is_own, 0, distances) / neighborhoods.farthest[part_rows]
        rows.append(part_rows)
        columns.append(part_columns)
        weights.append(np.exp(-distances))
    from scipy.sparse import csr_matrix  # late: Lightning imports the more of scipy if a part of it is loaded

    row, weight = np.concatenate(rows), np.concatenate(weights)
    weight = (weight / np.bincount(row, weight, minlength=len(items))[row]).astype(np.float32)
    return csr_matrix((weight, (row, np.concatenate(columns))), shape=(len(items), width))


def _expand(reciprocal: Integers, halves: Integers, width: int) -> Integers:
    """Return R*(i) of some items as keys: position of the item times ``width``, plus the neighbor (Eq. 3)."""
    candidates = reciprocal[:, 1:]
    members = halves[np.maximum(candidates, 0)]
    is_member = (members >= 0) & (candidates >= 0)[:, :, None]
    is_shared = (members[..., None] == reciprocal[:, None, None]).any(axis=-1) & is_member
    is_joined = 3 * is_shared.sum(axis=2) > 2 * is_member.sum(axis=2)
    items = np.broadcast_to(np.arange(len(reciprocal))[:, None, None], members.shape)
    joined = is_member & is_joined[:, :, None]
    rows, columns = np.nonzero(reciprocal >= 0)
    keys = [rows * width + reciprocal[rows, columns], items[joined] * width + members[joined]]
    unique: Integers = np.unique(np.concatenate(keys))
    return unique


def _sum_rows(codes: "csr_matrix", lists: Integers) -> "csr_matrix":
    """Sum up the encodings (G, G + 1) of the items in each list (N, k) -> (N, G + 1)."""
    from scipy.sparse import csr_matrix

    starts = np.arange(len(lists) + 1) * lists.shape[1]
    ones = np.ones(lists.size, dtype=np.float32)
    return csr_matrix((ones, lists.ravel(), starts), shape=(len(lists), codes.shape[0])) @ codes


@dataclass(frozen=True)
class EncodedComparison(Comparison):
    """Queries and a gallery that are compared by their k-reciprocal encodings, see `KReciprocal`.

    Args:
        codes: (Q, G + 1) sparse encodings of the queries; the last column is of queries that are not in the gallery.
        inverted: (G + 1, G) sparse encodings of the gallery, transposed.
        farthest: (Q,) the largest squared Euclidean distance of each query to the gallery.
        distance_weight: weight of the original distance.
    """

    codes: "csr_matrix" = field(kw_only=True)
    inverted: "csr_matrix" = field(kw_only=True)
    farthest: Tensor = field(kw_only=True)
    distance_weight: float = field(kw_only=True)

    def distances(self, rows: range, out: Tensor | None = None) -> Tensor:
        """Return the weighted sums of both distances, from 0 to 1, see `Comparison`."""
        distances = super().distances(rows, out)
        is_excluded = distances == torch.inf
        distances.mul_(2).add_(2).clamp_(min=0.0)
        distances.mul_((self.distance_weight / self.farthest[rows.start : rows.stop])[:, None])
        for position, row in enumerate(rows):
            jaccard = torch.from_numpy(self._jaccard_distances(row)).to(distances.device)
            distances[position] += (1 - self.distance_weight) * jaccard
        return distances.masked_fill_(is_excluded, torch.inf)  # a weight of 0 has made them NaN

    def _jaccard_distances(self, query: int) -> Floats:
        """Return the Jaccard distances of a query's encoding to those of all items -> (G,) (Eq. 10)."""
        entries = slice(*self.codes.indptr[query : query + 2])
        columns, weights = self.codes.indices[entries], self.codes.data[entries]
        firsts = self.inverted.indptr[columns].astype(np.int64)
        numbers = self.inverted.indptr[columns + 1] - firsts
        positions = join_ranges(firsts, numbers)
        smaller = np.minimum(self.inverted.data[positions], np.repeat(weights, numbers))
        shared: Any = np.bincount(self.inverted.indices[positions], smaller, minlength=len(self.gallery))
        distances: Floats = (1 - shared / (2 - shared)).astype(np.float32)
        return distances
