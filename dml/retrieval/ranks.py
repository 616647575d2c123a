"""Exact ranks of chosen items among all items by distance; items at equal distances are ranked by index."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.retrieval.distance_keys import keys_fit, make_keys, put_last

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.unsignedinteger[Any]]
Keys = npt.NDArray[np.int32]

FEW = 12
"""Number of chosen items of a row up to which counting the nearer items of each is faster than sorting the row."""

DENSE = 10
"""If more than one of this many booleans is true, `np.flatnonzero` takes half the time."""


class ChosenRanks(NamedTuple):
    """Ranks and codes of P chosen items of R rows, sorted by row and then by rank.

    Args:
        ranks: (P,) ranks; the nearest of all items in a row has rank 1.
        codes: (P,) code of each item.
        numbers: (R,) number of chosen items of each row.
    """

    ranks: Integers
    codes: Codes
    numbers: Integers


class Ranker:
    """Computes ranks of chosen items in rows of distances, in memory that it reuses: 5 bytes for each distance.

    Every item has a code, which is 0 unless the item is chosen. The codes in the order of the distances tell the ranks
    of the chosen items, and which code has which rank.

    A call ranks several rows, because with one call for each row threads would often wait for the interpreter's lock.

    >>> ranker = Ranker(rows=1, length=4, largest_code=2)
    >>> distances = np.array([[0.5, 0.1, 0.9, 0.3]], dtype=np.float32)
    >>> chosen = ranker(distances, np.array([[1, 0, 0, 2]], dtype=np.uint8), numbers=np.array([2]))
    >>> chosen.ranks.tolist(), chosen.codes.tolist()
    ([2, 3], [2, 1])

    Args:
        rows: largest number of rows in a call.
        length: number of distances in each row, N.
        largest_code: largest code of an item, at least 1.
    """

    def __init__(self, rows: int, length: int, largest_code: int) -> None:
        self._bits = largest_code.bit_length()
        self._keys = np.empty((rows, length), dtype=np.int32)
        self._is_chosen = np.empty(rows * length + rows * length // (DENSE - 1) + 2, dtype=np.bool_)
        self._table = np.zeros(2**16, dtype=np.bool_)

    def __call__(
        self, distances: Floats, codes: Codes, numbers: Integers, excluded: Integers | None = None
    ) -> ChosenRanks:
        """Rank the items of each row whose code isn't 0.

        Args:
            distances: (R, N) distances between -2 and 2.
            codes: (R, N) code of each item.
            numbers: (R,) number of codes of each row that aren't 0.
            excluded: (R, M) items of each row that are at distance infinity, which ranks them behind all others, and
                have code 0; rows with fewer are filled with -1.
        """
        excluded = np.full((len(distances), 1), -1) if excluded is None else excluded
        if numbers.max() <= FEW:
            return _rank_by_counting(distances, codes, numbers)
        if keys_fit(distances, self._bits, self._keys[: len(distances)]):
            places, sorted_codes = self._sort_keys(distances, codes, numbers, excluded)
        else:
            places, sorted_codes = _sort_indices(distances, codes, excluded)
        ranks = places - np.repeat(np.arange(0, codes.size, codes.shape[1]), numbers)
        ranks += 1
        return ChosenRanks(ranks, sorted_codes, numbers)

    def _sort_keys(
        self, distances: Floats, codes: Codes, numbers: Integers, excluded: Integers
    ) -> tuple[Integers, Codes]:
        """Sort keys, each of which is a distance and behind it the code. -> places (P,) and codes (P,) of chosen items

        That takes a quarter of the time of sorting indices. Items at the same distance are sorted by code instead of
        index, which is put right afterwards.
        """
        keys = make_keys(distances, self._bits, out=self._keys[: len(distances)])
        keys |= codes
        put_last(keys, self._bits, excluded)
        keys.sort(axis=1)
        sorted_codes = keys.astype(np.uint8)
        sorted_codes &= (1 << self._bits) - 1
        places = self._find_chosen(sorted_codes, numbers.sum())
        sorted_codes = sorted_codes.reshape(-1)[places]
        ties = self._find_ties(keys.reshape(-1), places)
        numbers_of_ties, items = self._find_tied(ties, distances)
        ties.settle(numbers_of_ties, codes[ties.rows[numbers_of_ties], items], places, sorted_codes)
        return places, sorted_codes

    def _find_ties(self, keys: Keys, places: Integers) -> "_Ties":
        """Find the distances of items with different codes among the sorted keys (R N,), of which some are chosen."""
        differences = keys[1:] ^ keys[:-1]
        differences -= 1  # now equal keys have the largest unsigned number
        tied = np.flatnonzero(differences.view(np.uint32) < (1 << self._bits) - 1) + 1
        rows, columns = np.divmod(tied, self._keys.shape[1])
        tied, rows = tied[columns > 0], rows[columns > 0]  # the first key of a row has none before
        values = keys[tied] >> self._bits
        is_first = np.append(True, (np.diff(rows) | np.diff(values)) != 0)[: len(tied)]
        return _Ties(rows[is_first], values[is_first], np.searchsorted(places, tied[is_first]))

    def _find_tied(self, ties: "_Ties", distances: Floats) -> tuple[Integers, Integers]:
        """Find the items at the distance of each tie -> their ties (I,), rising, and indices (I,), rising for each.

        Candidates are all items that share the low 16 bits of the magnitude with any tie.
        """
        low_bits = np.absolute(ties.values).view(np.uint16)[::2]
        self._table[low_bits] = True
        candidates = np.flatnonzero(self._table.take(distances.view(np.uint16)[:, ::2], mode="clip"))
        self._table[low_bits] = False
        candidates = candidates[np.isfinite(distances.reshape(-1)[candidates])]
        rows, items = np.divmod(candidates, distances.shape[1])
        values = make_keys(distances[rows, items], self._bits) >> self._bits
        keys, tied_keys = (rows << 32) + values, (ties.rows << 32) + ties.values
        numbers = np.searchsorted(tied_keys, keys)
        is_tied = np.append(tied_keys, np.iinfo(np.int64).max)[numbers] == keys
        order = np.argsort(numbers[is_tied], kind="stable")
        return numbers[is_tied][order], items[is_tied][order]

    def _find_chosen(self, codes: Codes, number: int) -> Integers:
        """Return the places of the codes that aren't 0, whose number is known. (R, N) -> (number,)"""
        is_chosen = self._is_chosen[: codes.size + max(codes.size - DENSE * number, 0) // (DENSE - 1) + 2]
        np.not_equal(codes.reshape(-1), 0, out=is_chosen[: codes.size])
        is_chosen[codes.size :] = True  # enough true values to make them dense
        return np.flatnonzero(is_chosen)[:number]


class _Ties(NamedTuple):
    """Distances at which a row has items with different codes, sorted by row and distance.

    Args:
        rows: (T,) row of each.
        values: (T,) key of each distance, without room for a code.
        chosen: (T,) number, among the chosen items, of the first one that has another code than the item before.
    """

    rows: Integers
    values: Keys
    chosen: Integers

    def settle(self, numbers: Integers, tied_codes: Codes, places: Integers, codes: Codes) -> None:
        """Sort items at the same distance by index, which were sorted by code.

        Args:
            numbers: (I,) number of the tie of each item that is at the distance of a tie, rising.
            tied_codes: (I,) codes of these items, for each tie in the order of their indices.
            places: (P,) places of the chosen items among all, which are changed.
            codes: (P,) codes of the chosen items, which are changed.
        """
        is_before = tied_codes < codes[self.chosen][numbers]
        is_chosen = tied_codes > 0
        lengths, before, chosen, chosen_before = (
            np.bincount(numbers[which], minlength=len(self.rows))
            for which in (slice(None), is_before, is_chosen, is_before & is_chosen)
        )
        tied_places = join_ranges(places[self.chosen] - before, lengths)
        targets = join_ranges(self.chosen - chosen_before, chosen)
        places[targets], codes[targets] = tied_places[is_chosen], tied_codes[is_chosen]


def _sort_indices(distances: Floats, codes: Codes, excluded: Integers) -> tuple[Integers, Codes]:
    """Sort the indices of each row by distance. -> places (P,) and codes (P,) of chosen items"""
    keys = make_keys(distances, bits=1)
    put_last(keys, 1, excluded)
    sorted_codes = np.stack([row[_sort_with_order(row_keys)[1]] for row, row_keys in zip(codes, keys, strict=True)])
    places = np.flatnonzero(sorted_codes != 0)
    return places, sorted_codes.reshape(-1)[places]


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


def _rank_by_counting(distances: Floats, codes: Codes, numbers: Integers) -> ChosenRanks:
    """Rank the chosen items, (R,) of each row, by counting the items before each of them; see `Ranker`."""
    places = np.flatnonzero(codes != 0)
    rows, items = np.divmod(places, codes.shape[1])
    ranks = [
        1 + np.count_nonzero(distances[row, :item] <= value) + np.count_nonzero(distances[row, item:] < value)
        for row, item, value in zip(rows, items, distances[rows, items], strict=True)
    ]
    keys, order = _sort_with_order((rows << 32) + np.array(ranks, dtype=np.int64))
    return ChosenRanks(keys - (rows << 32), codes.reshape(-1)[places[order]], numbers)


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
