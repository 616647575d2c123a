"""Exact ranks of chosen items among all items by distance; items at equal distances are ranked by index."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.retrieval.row_order import sort_codes, sort_packed

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.unsignedinteger[Any]]
Ranks = npt.NDArray[np.int32]

FEW = 12
"""Number of chosen items of a row up to which counting the nearer items of each is faster than sorting the row."""


class ChosenRanks(NamedTuple):
    """Ranks and codes of P chosen items of R rows, sorted by row and then by rank.

    Args:
        ranks: (P,) ranks; the nearest of all items in a row has rank 1. Copies of int32 take half as long as of int64.
        codes: (P,) code of each item.
        numbers: (R,) number of chosen items of each row.
    """

    ranks: Ranks
    codes: Codes
    numbers: Integers


def rank_chosen(distances: Floats, codes: Codes, numbers: Integers) -> ChosenRanks:
    """Rank the items of each row whose code isn't 0.

    The codes in the order of the distances tell the ranks of the chosen items, and which code has which rank. A call
    ranks several rows, because with one call for each row threads would often wait for the interpreter's lock.

    >>> distances = np.array([[0.5, 0.1, 0.9, 0.3]], dtype=np.float32)
    >>> chosen = rank_chosen(distances, np.array([[1, 0, 0, 2]], dtype=np.uint8), numbers=np.array([2]))
    >>> chosen.ranks.tolist(), chosen.codes.tolist()
    ([2, 3], [2, 1])

    Args:
        distances: (R, N) distances without NaN; items at distance infinity are behind all others.
        codes: (R, N) code of each item.
        numbers: (R,) number of codes of each row that aren't 0.
    """
    if numbers.max() <= FEW:
        return _rank_by_counting(distances, codes, numbers)
    sorted_codes = sort_codes(codes, distances)
    places = np.flatnonzero(sorted_codes != 0)
    before_row = np.repeat(np.arange(-1, codes.size - 1, codes.shape[1]), numbers)  # the place before the row's first
    return ChosenRanks((places - before_row).astype(np.int32), sorted_codes.reshape(-1).take(places), numbers)


def nearest(distances: Floats, k: int) -> Integers:
    """Return the indices of the k smallest distances, smallest first; ties are sorted by index. (N,) -> (k,)

    >>> nearest(np.array([0.5, 0.1, 0.5, 0.3], dtype=np.float32), k=3).tolist()
    [1, 3, 0]

    Args:
        distances: (N,) distances of the items.
        k: number of indices, 0 to N.
    """
    if not k:
        return np.empty(0, dtype=np.int64)
    limit = np.partition(distances, k - 1)[k - 1]
    within = np.flatnonzero(distances <= limit)
    return within[np.argsort(distances[within], kind="stable")[:k]]


def _rank_by_counting(distances: Floats, codes: Codes, numbers: Integers) -> ChosenRanks:
    """Rank the chosen items, (R,) of each row, by counting the items before each of them; see `rank_chosen`."""
    places = np.flatnonzero(codes != 0)
    rows, items = np.divmod(places, codes.shape[1])
    ranks = [
        1 + np.count_nonzero(distances[row, :item] <= value) + np.count_nonzero(distances[row, item:] < value)
        for row, item, value in zip(rows, items, distances[rows, items], strict=True)
    ]
    keys, order = sort_packed((rows << 32) + np.array(ranks, dtype=np.int64))
    return ChosenRanks((keys - (rows << 32)).astype(np.int32), codes.reshape(-1)[places[order]], numbers)
