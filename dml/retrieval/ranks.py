"""Exact ranks of chosen items by their distances, ties in the order of the items' indices."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.int32]

FEW = 12  # items that are quicker counted one by one than found in a sorted row
PADDING = 8  # an eighth more of true marks: numpy's search for them is twice as fast if a tenth and more are true
LAST = 2**31 - 2  # the key of an item that is left out: behind all others, not chosen


class Places(NamedTuple):
    """Where P chosen items stand.

    Args:
        order: (P,) their places among the chosen, nearest first.
        ranks: (P,) their ranks in this order, from 1.
    """

    order: Integers
    ranks: Integers


class RowRanker:
    """Ranks items in one row of distances after another, and keeps the memory that takes: 9 bytes an item.

    Args:
        length: of the rows.
    """

    def __init__(self, length: int) -> None:
        self._keys = np.empty(length, dtype=np.int32)
        self._signs = np.empty(length, dtype=np.int32)
        self._marks = np.ones(length + length // PADDING, dtype=np.bool_)
        self._table = np.zeros(2**16, dtype=np.bool_)

    def __call__(self, distances: Floats, chosen: Integers, left_out: int | None = None) -> Places:
        """distances (N,), indices (P,) rising -> their `Places`.

        To know how many items are nearer than a chosen one, the distances are sorted, not the indices: that takes a
        quarter of the time. Each is made an integer whose last bit says that the item is chosen.

        Args:
            distances: between -2 and 2.
            chosen: the items to rank.
            left_out: an item at distance infinity, behind all others.
        """
        if len(chosen) <= FEW:
            return _counted(distances, chosen)
        keys = _even_keys(distances, self._keys, self._signs)
        own = keys[chosen]
        order = _stable_order(own)
        keys[chosen] = own + 1
        if left_out is not None:
            keys[left_out] = LAST
        keys.sort()
        np.not_equal(np.bitwise_and(keys, 1, out=self._signs), 0, out=self._marks[: len(keys)])
        found = np.flatnonzero(self._marks)[: len(chosen)]
        own = own[order]
        # an even key just before is another item at the same distance: it may be the later one by its index
        firsts = np.flatnonzero(keys[found - 1] == own)
        found += 1
        if len(firsts):
            lengths = np.searchsorted(own, own[firsts], side="right") - firsts
            self._settle_ties(distances, chosen[order], found, _ranges(firsts, lengths))
        return Places(order, found)

    def _settle_ties(self, distances: Floats, items: Integers, ranks: Integers, tied: Integers) -> None:
        """Moves chosen items before those that are not, tie with them, and have a higher index.

        Args:
            distances: (N,).
            items: (P,) the chosen ones, by distance and index.
            ranks: (P,) theirs, as if they stood behind all that tie with them; corrected in place.
            tied: the places in `items` of all that tie with others.
        """
        items = items[tied]
        values = distances[items]
        if len(items) <= FEW:
            pairs = zip(items, values, strict=True)
            higher = np.array([np.count_nonzero(distances[item + 1 :] == value) for item, value in pairs])
        else:
            higher = self._number_higher(distances, items, values)
        # the chosen ones among these stand behind it already
        chosen = np.searchsorted(values, values, side="right") - 1 - np.arange(len(values))
        ranks[tied] -= higher - chosen

    def _number_higher(self, distances: Floats, items: Integers, values: Floats) -> Integers:
        """How many items at the same distance have a higher index. (N,), (T,) by distance and index, (T,) -> (T,)"""
        wanted = values.view(np.uint16)[::2]  # the low halves of the bits leave few items to look at
        self._table[wanted] = True
        marks = self._table.take(distances.view(np.uint16)[::2], out=self._marks[: len(distances)], mode="clip")
        near = np.flatnonzero(marks)
        near = near[np.isfinite(distances[near])]
        self._table[wanted] = False
        order = _stable_order(_even_keys(distances[near]))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        end = np.searchsorted(distances[near[order]], values, side="right")
        return end - 1 - place[np.searchsorted(near, items)]


def _even_keys(distances: Floats, keys: Keys | None = None, signs: Keys | None = None) -> Keys:
    """Even integers in the order of the distances, -0 and 0 the same. (N,) -> (N,), in the memory of `keys` if given

    The bits of a float are its sign and, below 2, 30 bits that rise with its magnitude.
    """
    bits = distances.view(np.int32)
    signs = np.right_shift(bits, 31, out=signs)
    keys = np.left_shift(bits, 1, out=keys)
    keys ^= signs
    keys -= signs
    return keys


def _ranges(firsts: Integers, lengths: Integers) -> Integers:
    """first, first + 1, ..., first + length - 1 of each. (T,), (T,) -> (sum of lengths,)"""
    before = np.cumsum(lengths) - lengths
    ranges: Integers = np.arange(lengths.sum()) + np.repeat(firsts - before, lengths)
    return ranges


def nearest(distances: Floats, k: int) -> Integers:
    """Indices of the k smallest of (N,), smallest first, ties by index. -> (k,), 0 <= k <= N"""
    if not k:
        return np.empty(0, dtype=np.int64)
    limit = np.partition(distances, k - 1)[k - 1]
    within = np.flatnonzero(distances <= limit)
    return within[np.argsort(distances[within], kind="stable")[:k]]


def _counted(distances: Floats, chosen: Integers) -> Places:
    own = distances[chosen]
    ranks = [
        1 + np.count_nonzero(distances < value) + np.count_nonzero(distances[:item] == value)
        for item, value in zip(chosen, own, strict=True)
    ]
    order = np.argsort(own, kind="stable")
    return Places(order, np.array(ranks, dtype=np.int64)[order])


def _stable_order(keys: Keys) -> Integers:
    """What sorts (P,), ties in their order: as 64-bit integers of key and place, a fifth of a stable argsort's time."""
    packed = keys.astype(np.int64)
    packed <<= 32
    packed |= np.arange(len(keys))
    packed.sort()
    packed &= 0xFFFFFFFF
    return packed
