"""Exact ranks of chosen items by their distances, ties in the order of the items' indices."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.int32]

FEW = 12  # items that are quicker counted one by one than found in a sorted row
DENSE = 10  # numpy finds the true ones of marks twice as fast if more than one in so many is true
LAST = 2**31 - 2  # the key of an excluded item: behind all others, not chosen


class Places(NamedTuple):
    """Where P items that are chosen in some rows stand.

    Args:
        order: (P,) their places among the chosen, row after row, nearest first.
        ranks: (P,) their ranks in this order, from 1 in each row.
    """

    order: Integers
    ranks: Integers


class Ranker:
    """Ranks items in rows of distances, and keeps the memory that takes: 5 bytes for each distance of a call.

    A call ranks several rows: were each sorted by a call of its own, threads would often wait for the interpreter's
    lock.

    Args:
        rows: of a call, at most.
        length: of the rows.
    """

    def __init__(self, rows: int, length: int) -> None:
        self._keys = np.empty((rows, length), dtype=np.int32)
        self._odd = np.empty(rows * length + rows * length // (DENSE - 1) + 2, dtype=np.bool_)
        self._table = np.zeros(2**16, dtype=np.bool_)

    def __call__(
        self, distances: Floats, chosen: Integers, numbers: Integers, excluded: Integers | None = None
    ) -> Places:
        """distances (R, N), the items to rank (P,), row after row and rising in each, how many each row has (R,).

        To know how many items are nearer than a chosen one, the distances are sorted, not the indices: that takes a
        quarter of the time. Each is made an integer whose last bit says that the item is chosen.

        Args:
            distances: between -2 and 2.
            chosen: indices.
            numbers: their sum is P.
            excluded: (R, M) items of each row at distance infinity, behind all others and not chosen; -1 fills
                rows that have fewer.
        """
        if numbers.max() <= FEW:
            return _counted(distances, chosen, numbers)
        keys = _even_keys(distances, self._keys[: len(distances)])
        if excluded is not None:
            has_item = np.nonzero(excluded >= 0)
            keys[has_item[0], excluded[has_item]] = LAST
        rows, flat = np.repeat(np.arange(len(keys)), numbers), keys.reshape(-1)
        starts = rows * keys.shape[1]
        places = starts + chosen
        own = flat[places]
        flat[places] = own + 1
        own, order = _sorted_with_places((rows << 32) + own)
        keys.sort(axis=1)
        places = self._odd_places(flat, len(chosen))
        ranks = places - starts
        ranks += 1
        # an even key just before is another item at the same distance: it may be the later one by its index
        firsts = np.flatnonzero(flat[places] - flat[places - 1] == 1)
        if len(firsts):
            lengths = np.searchsorted(own, own[firsts], side="right") - firsts
            tied = _ranges(firsts, lengths)
            behind = np.repeat(firsts + lengths - 1, lengths) - tied  # chosen ones that stand behind it already
            ranks[tied] -= self._number_higher(distances, rows[tied], chosen[order[tied]]) - behind
        return Places(order, ranks)

    def _odd_places(self, keys: Keys, number: int) -> Integers:
        """Where the odd ones stand, (M,) -> (number,)"""
        odd = self._odd[: len(keys) + max(len(keys) - DENSE * number, 0) // (DENSE - 1) + 2]
        np.bitwise_and(keys.astype(np.uint8), 1, out=odd[: len(keys)].view(np.uint8))
        odd[len(keys) :] = True  # as many as make them dense
        return np.flatnonzero(odd)[:number]

    def _number_higher(self, distances: Floats, rows: Integers, items: Integers) -> Integers:
        """How many items at the same distance have a higher index. (R, N), (T,) rising, (T,) -> (T,)

        The items of a row are by distance and index.
        """
        if len(items) <= FEW * len(distances):
            pairs = zip(rows.tolist(), items.tolist(), strict=True)
            numbers = [np.count_nonzero(distances[row, item + 1 :] == distances[row, item]) for row, item in pairs]
            return np.array(numbers, dtype=np.int64)
        ties = np.split(items, np.searchsorted(rows, np.arange(1, len(distances))))
        return np.concatenate([self._number_higher_in(row, own) for row, own in zip(distances, ties, strict=True)])

    def _number_higher_in(self, distances: Floats, items: Integers) -> Integers:
        """How many items at the same distance have a higher index. (N,), (T,) by distance and index -> (T,)"""
        values = distances[items]
        wanted = values.view(np.uint16)[::2]  # the low halves of the bits leave few items to look at
        self._table[wanted] = True
        near = np.flatnonzero(self._table.take(distances.view(np.uint16)[::2], mode="clip"))
        near = near[np.isfinite(distances[near])]
        self._table[wanted] = False
        order = _sorted_with_places(_even_keys(distances[near]))[1]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        end = np.searchsorted(distances[near[order]], values, side="right")
        return end - 1 - place[np.searchsorted(near, items)]


def _even_keys(distances: Floats, out: Keys | None = None) -> Keys:
    """Even integers in the order of the distances, -0 and 0 the same. (...) -> (...), in the memory of `out` if given

    The bits of a float are its sign and, below 2, 30 bits that rise with its magnitude m. As an integer a negative one
    is -2^31 + m, and twice its absolute value overflows to -2m.
    """
    keys = np.absolute(distances.view(np.int32), out=out)
    keys <<= 1
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


def _counted(distances: Floats, chosen: Integers, numbers: Integers) -> Places:
    rows = np.repeat(np.arange(len(distances)), numbers)
    ranks = [
        1 + np.count_nonzero(distances[row, :item] <= value) + np.count_nonzero(distances[row, item:] < value)
        for row, item, value in zip(rows, chosen, distances[rows, chosen], strict=True)
    ]
    found, order = _sorted_with_places((rows << 32) + np.array(ranks, dtype=np.int64))
    return Places(order, found - (rows << 32))


def _sorted_with_places(values: npt.NDArray[np.signedinteger[Any]]) -> tuple[Integers, Integers]:
    """(P,) sorted, and what sorts them, ties in their order.

    As 64-bit integers of value and place they are sorted in a fifth of a stable argsort's time.
    """
    bits = len(values).bit_length()
    packed = values.astype(np.int64, copy=False) << bits
    packed |= np.arange(len(values))
    packed.sort()
    return packed >> bits, packed & (1 << bits) - 1
