from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Positives:
    """Which gallery items share levels with a query; without a gallery the queries are their own.

    Args:
        queries: labels (Q, L).
        gallery: labels (G, L).
    """

    def __init__(self, queries: npt.NDArray[Any], gallery: npt.NDArray[Any] | None) -> None:
        self.own = gallery is None
        self.queries = queries
        labels = queries if gallery is None else gallery
        self.columns = [np.ascontiguousarray(column) for column in labels.T]
        self._order = [np.argsort(column, kind="stable") for column in self.columns]
        self._bounds = [
            [np.searchsorted(column[order], wanted, side) for side in ("left", "right")]
            for column, order, wanted in zip(self.columns, self._order, queries.T, strict=True)
        ]
        self._nested = _coarsest_holds_all(queries if gallery is None else np.concatenate([queries, gallery]))

    def number(self, level: int) -> Integers:
        """How many positives each query has at the level. -> (Q,)"""
        first, last = self._bounds[level]
        number: Integers = last - first - self.own
        return number

    def of(self, query: int) -> Integers:
        """The indices, rising, of the items that share any level with the query, itself left out. -> (P,)"""
        if self._nested:
            first, last = self._bounds[-1]
            items = self._order[-1][first[query] : last[query]]
        else:
            pairs = zip(self.columns, self.queries[query], strict=True)
            items = np.flatnonzero(np.logical_or.reduce([column == label for column, label in pairs]))
        if not self.own:
            return items
        place = np.searchsorted(items, query)
        return np.concatenate([items[:place], items[place + 1 :]])

    def shared(self, query: int, items: Integers) -> list[npt.NDArray[np.bool_] | None]:
        """For each level, which of the items `of` a query have its label (P,), or None for all."""
        checked = self.columns[:-1] if self._nested else self.columns
        same = [column[items] == label for column, label in zip(checked, self.queries[query], strict=False)]
        return [*same, None] if self._nested else list(same)


def _coarsest_holds_all(labels: npt.NDArray[Any]) -> bool:
    """Whether two items that share any level share the coarsest, as in a tree."""
    coarsest = labels.shape[1] - 1
    return all(
        len(np.unique(labels[:, [level, coarsest]], axis=0)) == len(np.unique(labels[:, level]))
        for level in range(coarsest)
    )
