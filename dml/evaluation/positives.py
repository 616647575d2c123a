from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.evaluation.exclusions import queries_themselves

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.unsignedinteger[Any]]


class Shared(NamedTuple):
    """The gallery items that share any level with some queries, P in all.

    Args:
        items: (P,) their indices, query after query and rising for each.
        bits: (P,) bit i is set where the item has the query's label at level i.
        numbers: (Q,) how many each query has.
    """

    items: Integers
    bits: Bits
    numbers: Integers


class Positives:
    """Which gallery items share levels with a query; without a gallery the queries are their own.

    Args:
        queries: labels (Q, L).
        gallery: labels (G, L).
        excluded: (Q, M) the gallery items, no two equal, that each query excludes, padded with -1; None excludes
            the query itself from a gallery of the queries, and nothing from another one.
    """

    def __init__(
        self, queries: npt.NDArray[Any], gallery: npt.NDArray[Any] | None, excluded: Integers | None = None
    ) -> None:
        if excluded is None:
            excluded = queries_themselves(len(queries))[:, : 1 if gallery is None else 0]
        self.excluded = excluded
        self.depth = queries.shape[1]
        labels = queries if gallery is None else gallery
        self._length = len(labels)
        self._order = [np.argsort(column, kind="stable") for column in labels.T]
        self._bounds = [
            [np.searchsorted(column[order], wanted, side) for side in ("left", "right")]
            for column, order, wanted in zip(labels.T, self._order, queries.T, strict=True)
        ]
        has_item, items = excluded >= 0, np.maximum(excluded, 0)
        self._excluded = [[item for item in row if item >= 0] for row in excluded.tolist()]
        self._excluded_positives = [
            ((column[items] == wanted[:, None]) & has_item).sum(axis=1)
            for column, wanted in zip(labels.T, queries.T, strict=True)
        ]
        self._nested = _coarsest_holds_all(queries if gallery is None else np.concatenate([queries, gallery]))

    def number(self, level: int) -> Integers:
        """How many positives each query has at the level. -> (Q,)"""
        first, last = self._bounds[level]
        number: Integers = last - first - self._excluded_positives[level]
        return number

    def marks(self) -> Bits:
        """Memory for `of`. (G,)"""
        return np.zeros(self._length, dtype=np.min_scalar_type(2**self.depth - 1))

    def of(self, queries: range, marks: Bits) -> Shared:
        """The items that share a level with the queries, without those that a query excludes.

        Args:
            queries: their indices.
            marks: (G,) zeros, to write on; they are zeros again in the end.
        """
        items, bits = zip(*(self._of(query, marks) for query in queries), strict=True)
        return Shared(np.concatenate(items), np.concatenate(bits), np.array([len(own) for own in items]))

    def _of(self, query: int, marks: Bits) -> tuple[Integers, Bits]:
        sets = [self._at(query, level) for level in range(self.depth)]
        marked = sets[:-1] if self._nested else sets
        for level, own in enumerate(marked):
            marks[own] |= 1 << level
        excluded = self._excluded[query]
        marks[excluded] = 0
        if self._nested:
            items = sets[-1]
            for item in excluded:
                place = np.searchsorted(items, item)
                if place < len(items) and items[place] == item:
                    items = np.concatenate([items[:place], items[place + 1 :]])
            bits = marks[items] | 1 << self.depth - 1
        else:
            items = np.flatnonzero(marks)
            bits = marks[items]
        for own in marked:
            marks[own] = 0
        return items, bits

    def _at(self, query: int, level: int) -> Integers:
        """The gallery items with the query's label at the level, rising; those that it excludes among them."""
        first, last = self._bounds[level]
        return self._order[level][first[query] : last[query]]


def _coarsest_holds_all(labels: npt.NDArray[Any]) -> bool:
    """Whether two items that share any level share the coarsest, as in a tree."""
    coarsest = labels.shape[1] - 1
    return all(
        len(np.unique(labels[:, [level, coarsest]], axis=0)) == len(np.unique(labels[:, level]))
        for level in range(coarsest)
    )
