"""Exact ranks of chosen items among all items by distance; items at equal distances are ranked by index."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.int32]
LowBits = npt.NDArray[np.uint16]

FEW = 12
"""Number of chosen items up to which counting the nearer items of each is faster than sorting the row."""

DENSE = 10
"""If more than one of this many booleans is true, `np.flatnonzero` takes half the time."""

LAST_KEY = 2**31 - 2
"""Key of an excluded item, which ranks it behind all others; it is even, as of an item that isn't chosen."""


FEW_SEARCHED = 8
"""If fewer than one of this many chosen items are searched for, finding them takes less time than sorting all."""


class ChosenRanks(NamedTuple):
    """Ranks of P chosen items, sorted by row and then by rank, and where some of the items are among them.

    Args:
        ranks: (P,) sorted ranks; the nearest of all items in a row has rank 1.
        places: (S,) the position in ``ranks`` of each item that was to be located.
    """

    ranks: Integers
    places: Integers


class Ranker:
    """Computes ranks of chosen items in rows of distances, in memory that it reuses: 5 bytes for each distance.

    A call ranks several rows, because with one call for each row threads would often wait for the interpreter's lock.

    >>> ranker = Ranker(rows=1, length=4)
    >>> distances = np.array([[0.5, 0.1, 0.9, 0.3]], dtype=np.float32)
    >>> chosen = ranker(distances, np.array([0, 3]), np.array([2]), located=np.array([0]))
    >>> chosen.ranks.tolist(), chosen.places.tolist()
    ([2, 3], [1])

    Args:
        rows: largest number of rows in a call.
        length: number of distances in each row, N.
    """

    def __init__(self, rows: int, length: int) -> None:
        self._keys = np.empty((rows, length), dtype=np.int32)
        self._odd = np.empty(rows * length + rows * length // (DENSE - 1) + 2, dtype=np.bool_)
        self._table = np.zeros(2**16, dtype=np.bool_)

    def __call__(
        self,
        distances: Floats,
        chosen: Integers,
        numbers: Integers,
        excluded: Integers | None = None,
        *,
        located: Integers,
    ) -> ChosenRanks:
        """Rank the chosen items of each row.

        Distances are sorted instead of indices, which takes a quarter of the time. Each distance becomes an integer key
        that is odd if the item is chosen, so that the ranks of chosen items can be found among the sorted keys. Which
        item has which of these ranks is found for the items alone that are to be located, and for ties.

        Args:
            distances: (R, N) distances between -2 and 2.
            chosen: (P,) indices of the chosen items, row after row and ascending in each row.
            numbers: (R,) number of chosen items of each row; the sum is P.
            excluded: (R, M) items of each row that are ranked behind all others, whatever their distance, and aren't
                chosen; rows with fewer are filled with -1.
            located: (S,) indices in ``chosen`` of the items to locate.
        """
        if numbers.max() <= FEW:
            return _rank_by_counting(distances, chosen, numbers, located)
        keys = _even_keys(distances, self._keys[: len(distances)])
        if excluded is not None:
            has_item = np.nonzero(excluded >= 0)
            keys[has_item[0], excluded[has_item]] = LAST_KEY
        rows, flat = np.repeat(np.arange(len(keys)), numbers), keys.reshape(-1)
        starts = rows * keys.shape[1]
        positions = starts + chosen
        chosen_keys = flat[positions] + 1
        flat[positions] = chosen_keys
        keys.sort(axis=1)
        positions = self._find_odd(flat, len(chosen))
        ranks = positions - starts
        ranks += 1
        ranked_keys = flat[positions]
        # If the key before a chosen item's is the same but even, an item that isn't chosen is at the same distance.
        # Such items are sorted before the chosen one, but belong behind it if their index is higher.
        firsts = np.flatnonzero(ranked_keys - flat[positions - 1] == 1)
        rows <<= 32
        sorted_keys = rows + ranked_keys
        searched_keys = np.concatenate([rows[located] + chosen_keys[located], sorted_keys[firsts]])
        items, places = self._locate(searched_keys, rows, chosen_keys, sorted_keys)
        if len(firsts):
            lengths = np.searchsorted(sorted_keys, sorted_keys[firsts], side="right") - firsts
            tied = join_ranges(firsts, lengths)
            tied_items = chosen[items[join_ranges(np.searchsorted(places, firsts), lengths)]]
            behind = np.repeat(firsts + lengths - 1, lengths) - tied  # chosen items that are behind it already
            ranks[tied] -= self._count_higher(distances, rows[tied] >> 32, tied_items) - behind
        place_of_item = np.empty_like(ranks)
        place_of_item[items] = places
        return ChosenRanks(ranks, place_of_item[located])

    def _locate(
        self, searched_keys: Integers, rows: Integers, chosen_keys: Keys, sorted_keys: Integers
    ) -> tuple[Integers, Integers]:
        """Find the places of all chosen items that have one of some keys, and of a few more items.

        Args:
            searched_keys: (W,) the keys, as in ``sorted_keys``.
            rows: (P,) row of each chosen item, times 2^32.
            chosen_keys: (P,) key of each chosen item.
            sorted_keys: (P,) sums of row and key, sorted.

        Returns:
            The indices of the items among the chosen ones (C,), sorted by row, distance and index, and their places
            among the sorted keys (C,).
        """
        if len(searched_keys) * FEW_SEARCHED > len(chosen_keys):
            return _sort_with_order(rows + chosen_keys)[1], np.arange(len(chosen_keys))
        items = self._find_candidates(searched_keys.view(np.uint16)[::4], chosen_keys.view(np.uint16)[::2])
        keys, order = _sort_with_order(rows[items] + chosen_keys[items])
        # The items with a key, all of which are candidates, stand side by side in both arrays.
        places = np.arange(len(keys)) + np.searchsorted(sorted_keys, keys) - np.searchsorted(keys, keys)
        return items[order], places

    def _find_candidates(self, searched_bits: LowBits, low_bits: LowBits) -> Integers:
        """Return the indices of the numbers whose low 16 bits are searched for. (W,), (M,) -> (C,)"""
        self._table[searched_bits] = True
        candidates = np.flatnonzero(self._table.take(low_bits, mode="clip"))
        self._table[searched_bits] = False
        return candidates

    def _find_odd(self, keys: Keys, number: int) -> Integers:
        """Return the indices of the odd keys, whose number is known. (M,) -> (number,)"""
        odd = self._odd[: len(keys) + max(len(keys) - DENSE * number, 0) // (DENSE - 1) + 2]
        np.bitwise_and(keys.astype(np.uint8), 1, out=odd[: len(keys)].view(np.uint8))
        odd[len(keys) :] = True  # enough true values to make them dense
        return np.flatnonzero(odd)[:number]

    def _count_higher(self, distances: Floats, rows: Integers, items: Integers) -> Integers:
        """Count the items that are at the same distance as an item and have a higher index.

        Args:
            distances: (R, N) distances.
            rows: (T,) row of each item, ascending.
            items: (T,) index of each item in the row, sorted by distance and index.

        Returns:
            The count of each item (T,).
        """
        if len(items) <= FEW * len(distances):
            pairs = zip(rows.tolist(), items.tolist(), strict=True)
            numbers = [np.count_nonzero(distances[row, item + 1 :] == distances[row, item]) for row, item in pairs]
            return np.array(numbers, dtype=np.int64)
        ties = np.split(items, np.searchsorted(rows, np.arange(1, len(distances))))
        counts = [self._count_higher_in_row(row, tied) for row, tied in zip(distances, ties, strict=True)]
        return np.concatenate(counts)

    def _count_higher_in_row(self, distances: Floats, items: Integers) -> Integers:
        """Count the items at the same distance and with a higher index in one row. (N,), (T,) -> (T,)"""
        values = distances[items]
        candidates = self._find_candidates(values.view(np.uint16)[::2], distances.view(np.uint16)[::2])
        candidates = candidates[np.isfinite(distances[candidates])]
        order = _sort_with_order(_even_keys(distances[candidates]))[1]
        position = _invert(order)
        end = np.searchsorted(distances[candidates[order]], values, side="right")
        return end - 1 - position[np.searchsorted(candidates, items)]


def _even_keys(distances: Floats, out: Keys | None = None) -> Keys:
    """Convert distances to even integers in the same order; -0 and 0 become the same integer. (...) -> (...)

    A float32 below 2 consists of a sign bit and 30 bits that ascend with the magnitude m. As an integer, a negative
    float is -2^31 + m, and twice the absolute value of that overflows to -2m.
    """
    keys = np.absolute(distances.view(np.int32), out=out)
    keys <<= 1
    return keys


def join_ranges(firsts: Integers, lengths: Integers) -> Integers:
    """Concatenate the ranges first, first + 1, ..., first + length - 1. (T,), (T,) -> (sum of lengths,)"""
    before = np.cumsum(lengths) - lengths
    ranges: Integers = np.arange(lengths.sum()) + np.repeat(firsts - before, lengths)
    return ranges


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


def _rank_by_counting(distances: Floats, chosen: Integers, numbers: Integers, located: Integers) -> ChosenRanks:
    """Rank the chosen items by counting the items before each of them; see `Ranker`."""
    rows = np.repeat(np.arange(len(distances)), numbers)
    ranks = [
        1 + np.count_nonzero(distances[row, :item] <= value) + np.count_nonzero(distances[row, item:] < value)
        for row, item, value in zip(rows, chosen, distances[rows, chosen], strict=True)
    ]
    keys, order = _sort_with_order((rows << 32) + np.array(ranks, dtype=np.int64))
    return ChosenRanks(keys - (rows << 32), _invert(order)[located])


def _sort_with_order(values: npt.NDArray[np.signedinteger[Any]]) -> tuple[Integers, Integers]:
    """Sort values (P,) stably -> the sorted values (P,) and the indices that sort them (P,).

    Each value is packed with its index into one 64-bit integer. Sorting these takes a fifth of the time of a stable
    argsort.
    """
    bits = len(values).bit_length()
    packed = values.astype(np.int64, copy=False) << bits
    packed |= np.arange(len(values))
    packed.sort()
    return packed >> bits, packed & (1 << bits) - 1


def _invert(order: Integers) -> Integers:
    """Return the position of each index in an order of all indices. (P,) -> (P,)"""
    positions = np.empty_like(order)
    positions[order] = np.arange(len(order))
    return positions
