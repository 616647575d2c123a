"""The gallery items that share levels with a query."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.evaluation.ranking.exclusions import exclude_queries

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.unsignedinteger[Any]]


class Shared(NamedTuple):
    """The gallery items that share any level with some queries, P in all.

    Args:
        items: (P,) indices of the items, query after query and rising for each.
        bits: (P,) bit i is set where the item has the query's label at level i.
        numbers: (Q,) number of items of each query.
    """

    items: Integers
    bits: Bits
    numbers: Integers


class Positives:
    """The gallery items that share levels with each query; without a gallery the queries are their own.

    Args:
        queries: labels (Q, L) of the queries.
        gallery: labels (G, L) of the gallery; None if the queries are their own gallery.
        excluded: (Q, M) the gallery items, no two equal, that each query excludes, padded with -1; None excludes
            the query itself from a gallery of the queries, and nothing from another one.
    """

    def __init__(
        self, queries: npt.NDArray[Any], gallery: npt.NDArray[Any] | None, excluded: Integers | None = None
    ) -> None:
        if excluded is None:
            excluded = exclude_queries(len(queries))[:, : 1 if gallery is None else 0]
        self.excluded = excluded
        self.depth = queries.shape[1]
        labels = queries if gallery is None else gallery
        self._length = len(labels)
        self._order = [np.argsort(column, kind="stable") for column in labels.T]
        self._bounds = [
            [np.searchsorted(column[order], query_labels, side) for side in ("left", "right")]
            for column, order, query_labels in zip(labels.T, self._order, queries.T, strict=True)
        ]
        has_item, items = excluded >= 0, np.maximum(excluded, 0)
        self._excluded = [[item for item in row if item >= 0] for row in excluded.tolist()]
        self._excluded_positives = [
            ((column[items] == query_labels[:, None]) & has_item).sum(axis=1)
            for column, query_labels in zip(labels.T, queries.T, strict=True)
        ]
        self.is_tree = _is_tree(queries if gallery is None else np.concatenate([queries, gallery]))
        """Whether items that share a level share all coarser ones."""

    def count(self, level: int) -> Integers:
        """Count the positives of each query at a level. -> (Q,)"""
        first, last = self._bounds[level]
        counts: Integers = last - first - self._excluded_positives[level]
        return counts

    def find_queries_with_any(self, queries: range | slice = slice(None)) -> dict[str, npt.NDArray[np.bool_]]:
        """Return {"level0", ...: (Q,) whether some queries have a positive at the level, "": whether at any level}."""
        rows = slice(queries.start, queries.stop)
        by_level = [self.count(level)[rows] > 0 for level in range(self.depth)]
        return {f"level{level}": has_any for level, has_any in enumerate(by_level)} | {
            "": np.logical_or.reduce(by_level)
        }

    def allocate_marks(self) -> Bits:
        """Return scratch memory for `find_shared`: zeros (G,)."""
        return np.zeros(self._length, dtype=np.min_scalar_type(2**self.depth - 1))

    def find_shared(self, queries: range, marks: Bits) -> Shared:
        """Find the items that share a level with the queries, without the items that a query excludes.

        Args:
            queries: indices of the queries.
            marks: zeros (G,) from `allocate_marks`, which the method uses and resets to zeros.
        """
        items, bits = zip(*(self._find_shared(query, marks) for query in queries), strict=True)
        return Shared(
            np.concatenate(items), np.concatenate(bits), np.array([len(items_of_query) for items_of_query in items])
        )

    def _find_shared(self, query: int, marks: Bits) -> tuple[Integers, Bits]:
        sets = [self._find_at_level(query, level) for level in range(self.depth)]
        marked = sets[:-1] if self.is_tree else sets
        for level, level_items in enumerate(marked):
            marks[level_items] |= 1 << level
        excluded = self._excluded[query]
        marks[excluded] = 0
        if self.is_tree:  # the items of the coarsest level are all that share any level, and they are sorted
            items = sets[-1]
            for item in excluded:
                position = np.searchsorted(items, item)
                if position < len(items) and items[position] == item:
                    items = np.concatenate([items[:position], items[position + 1 :]])
            bits = marks[items] | 1 << self.depth - 1
        else:
            items = np.flatnonzero(marks)
            bits = marks[items]
        for level_items in marked:
            marks[level_items] = 0
        return items, bits

    def _find_at_level(self, query: int, level: int) -> Integers:
        """Find the gallery items with the query's label at a level, rising, the excluded ones among them."""
        first, last = self._bounds[level]
        return self._order[level][first[query] : last[query]]


def _is_tree(labels: npt.NDArray[Any]) -> bool:
    """Return whether two items that share any level share the next coarser one."""
    return all(
        len(np.unique(labels[:, [level, level + 1]], axis=0)) == len(np.unique(labels[:, level]))
        for level in range(labels.shape[1] - 1)
    )
