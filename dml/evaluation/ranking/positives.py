"""The gallery items that share levels with a query."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dml.evaluation.ranking.exclusions import exclude_queries

Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.unsignedinteger[Any]]


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
        self.depth: int = queries.shape[1]
        labels = queries if gallery is None else gallery
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
        self._coarsest_counts = self.count(self.depth - 1)  # those that share any level, in a tree

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

    @property
    def largest_code(self) -> int:
        """The largest code of an item, see `code_items`."""
        return self.depth if self.is_tree else (1 << self.depth) - 1

    def code_items(self, queries: range, codes: Codes) -> Integers:
        """Write a code for what each gallery item shares with each query, into (Q, G) unsigned integers.

        In a tree, the code is the number of levels that the item shares. Otherwise bit i is set if the item has the
        query's label at level i. Items that the query excludes have code 0.

        Returns:
            The number of items of each query (Q,) that share any level.
        """
        codes.fill(0)
        for query, row in zip(queries, codes, strict=True):
            for level in reversed(range(self.depth)):  # items of finer levels overwrite the codes of coarser ones
                items = self._find_at_level(query, level)
                if self.is_tree:
                    row[items] = self.depth - level
                else:
                    row[items] |= 1 << level
            row[self._excluded[query]] = 0
        if self.is_tree:
            return self._coarsest_counts[queries.start : queries.stop]
        return np.array([np.count_nonzero(row) for row in codes])

    def count_shared(self, codes: Codes) -> Codes:
        """Return the number of levels that items with some codes share. (P,) -> (P,)"""
        return codes if self.is_tree else np.bitwise_count(codes)

    def _find_at_level(self, query: int, level: int) -> Integers:
        """Find the gallery items with the query's label at a level, rising, the excluded ones among them."""
        first, last = self._bounds[level]
        return self._order[level][first[query] : last[query]]


def _is_tree(labels: npt.NDArray[Any]) -> bool:
    """Return whether two items that share any level share the next coarser one."""
    for finer, coarser in pairwise(labels.T):
        _, firsts, classes = np.unique(finer, return_index=True, return_inverse=True)
        if (coarser != coarser[firsts][classes]).any():
            return False
    return True
