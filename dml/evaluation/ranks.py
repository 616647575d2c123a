"""Exact ranks of the positives among all items by distance, ties by index: by counting where they are few, or a sort.

Each device has such a pair of ways: `rank_rows` on CPU, and `rank_block` by tensor functions that suit a GPU.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.evaluation.items import Codes, Integers, Positives
from dml.metrics.binary import pad_ranks
from dml.metrics.graded import GradedRanks
from dml.retrieval.gallery import get_bits, k_nearest, nearest, sort_with_ties

Floats = npt.NDArray[np.float32]
Signed = npt.NDArray[np.signedinteger[Any]]
Keys = npt.NDArray[np.int32]


class Rankings(NamedTuple):
    """The ranks of the items that metrics need, for Q queries: (Q, P) float64, rising, padded with infinity; P >= 1."""

    by_level: tuple[Tensor, ...]
    """For each level, the ranks of the items with the query's label."""
    by_shared_levels: GradedRanks
    """For each number of levels from 1 to L, the ranks of the items that share exactly as many with the query."""
    nearest: Tensor
    """The nearest items (Q, k) int64."""


FEW = 12
"""Number of chosen items of a row up to which counting the nearer items of each is faster than sorting the row."""

RADIX_SORTED = 2**15
"""The number of integers from which on torch sorts a one-dimensional tensor by radix."""

LONG = 2**14
"""The number of distances of a row from which on it is filled up to that number, to be sorted by radix."""

LARGEST_PART = 2**20
"""The number of distances that are ranked together. With fewer, threads wait for the interpreter's lock more often."""

LAST = 2**31 - 1
"""The key of what a row is filled up with, which is larger than that of an infinite distance."""


class ChosenRanks(NamedTuple):
    """Ranks and codes of P chosen items of R rows, sorted by row and then by rank."""

    ranks: Signed  # (P,) from 1, the nearest of all items; copies of int32 take half as long as of int64
    codes: Codes  # (P,) code of each item
    numbers: Integers  # (R,) number of chosen items of each row


def rank_rows(distances: Tensor, positives: Positives, first: int, k: int) -> Rankings:
    """Rank the gallery on CPU for the queries from `first` on; ties are in the gallery's order. (Q, G) -> `Rankings`"""
    rows = distances.numpy()
    step = max(LARGEST_PART // rows.shape[1], 1)
    codes = np.empty((min(step, len(rows)), rows.shape[1]), dtype=positives.code_type)
    parts = []
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        numbers = positives.code_items(range(first + start, first + start + len(part)), codes[: len(part)])
        parts.append(rank_chosen(part, codes[: len(part)], numbers))
    chosen = ChosenRanks(*map(np.concatenate, zip(*parts, strict=True)))
    ranks, levels = _Ranks(chosen.ranks, np.cumsum(chosen.numbers)), np.bitwise_count(chosen.codes)
    by_level = [ranks.select(chosen.codes & 1 << level != 0).pad() for level in range(positives.depth)]
    at_least, exactly = [ranks.pad()], list[Tensor]()
    for level in range(1, positives.depth):
        is_finer = levels > level
        exactly.append(ranks.select(~is_finer).pad())
        ranks, levels = ranks.select(is_finer), levels[is_finer]
        at_least.append(ranks.pad())
    nearest_items = torch.from_numpy(np.stack([nearest(row, k) for row in rows]))
    return Rankings(tuple(by_level), GradedRanks([*exactly, at_least[-1]], at_least), nearest_items)


class _Ranks(NamedTuple):
    """The ranks (P,) of items, rising for each of several queries, and the position behind the last of each (Q,)."""

    ranks: Signed
    stops: Integers

    def select(self, is_selected: npt.NDArray[np.bool_]) -> "_Ranks":
        """Return the ranks of some of the items (P,)."""
        places = np.flatnonzero(is_selected)
        return _Ranks(self.ranks.take(places), np.searchsorted(places, self.stops))

    def pad(self) -> Tensor:
        """Return the ranks (Q, P') of Q queries, padded with infinity, with at least one column."""
        starts = np.append(0, self.stops[:-1])
        numbers = self.stops - starts
        table = np.empty((len(numbers), max(1, numbers.max())))
        for row, start, number in zip(table, starts.tolist(), numbers.tolist(), strict=True):
            row[:number] = self.ranks[start : start + number]
            row[number:] = np.inf
        return torch.from_numpy(table)


def rank_chosen(distances: Floats, codes: Codes, numbers: Integers) -> ChosenRanks:
    """Rank the items of each row (R, N) whose codes aren't 0, ``numbers`` (R,) of them, by distances without NaN.

    The codes in the order of the distances tell the ranks of the chosen items, and which code has which rank. A call
    ranks several rows, because with one call for each row threads would often wait for the interpreter's lock.

    >>> distances = np.array([[0.5, 0.1, 0.9, 0.3]], dtype=np.float32)
    >>> chosen = rank_chosen(distances, np.array([[1, 0, 0, 2]], dtype=np.uint8), numbers=np.array([2]))
    >>> chosen.ranks.tolist(), chosen.codes.tolist()
    ([2, 3], [2, 1])
    """
    if numbers.max() <= FEW:
        return _rank_by_counting(distances, codes, numbers)
    sorted_codes = sort_codes(codes, distances)
    places = np.flatnonzero(sorted_codes != 0)
    before_row = np.repeat(np.arange(-1, codes.size - 1, codes.shape[1]), numbers)  # the place before the row's first
    return ChosenRanks((places - before_row).astype(np.int32), sorted_codes.reshape(-1).take(places), numbers)


def _rank_by_counting(distances: Floats, codes: Codes, numbers: Integers) -> ChosenRanks:
    """Rank the chosen items, (R,) of each row, by counting the items before each of them; see `rank_chosen`."""
    places = np.flatnonzero(codes != 0)
    rows, items = np.divmod(places, codes.shape[1])
    ranks = np.array(
        [
            1 + np.count_nonzero(distances[row, :item] <= value) + np.count_nonzero(distances[row, item:] < value)
            for row, item, value in zip(rows, items, distances[rows, items], strict=True)
        ],
        dtype=np.int32,
    )
    order = np.lexsort((ranks, rows))
    return ChosenRanks(ranks[order], codes.reshape(-1)[places[order]], numbers)


def sort_codes(codes: Codes, distances: Floats) -> Codes:
    """Sort the codes of each row by distance, smallest first. (R, N), (R, N) without NaN -> (R, N)

    >>> codes = np.array([[1, 2, 3, 4]], dtype=np.uint8)
    >>> sort_codes(codes, np.array([[0.5, 0.0, -0.0, -0.3]], dtype=np.float32)).tolist()
    [[4, 2, 3, 1]]
    """
    sort = _sort_by_radix if codes.shape[1] >= LONG and _has_radix_sort() else _sort_by_packing
    signed = codes.view(f"i{codes.itemsize}")  # of unsigned integers, older versions of torch gather single bytes alone
    return sort(signed, distances).view(codes.dtype)


def _sort_by_radix(codes: Signed, distances: Floats) -> Signed:
    """Sort row by row in the same memory, which stays in the processor's cache."""
    items, length = codes.shape[1], max(codes.shape[1], RADIX_SORTED)
    keys, signs = np.full(length, LAST, dtype=np.int32), np.empty(items, dtype=np.int32)
    sorted_keys, order = torch.empty(length, dtype=torch.int32), torch.empty(length, dtype=torch.int64)
    sorted_codes = np.empty_like(codes)
    for row, row_codes, row_sorted in zip(distances, codes, sorted_codes, strict=True):
        _make_keys(row, keys[:items], signs)
        torch.sort(torch.from_numpy(keys), stable=True, out=(sorted_keys, order))
        torch.gather(torch.from_numpy(row_codes), 0, order[:items], out=torch.from_numpy(row_sorted))
    return sorted_codes


def _sort_by_packing(codes: Signed, distances: Floats) -> Signed:
    """Sort keys with the item's index in their last bits, in a fifth of the time of argsort."""
    bits = codes.shape[1].bit_length()
    packed = _make_keys(distances, *np.empty((2, *codes.shape), dtype=np.int32)).astype(np.int64)
    packed <<= bits
    packed |= np.arange(codes.shape[1])
    packed.sort()
    packed &= (1 << bits) - 1
    sorted_codes: Signed = torch.from_numpy(codes).gather(1, torch.from_numpy(packed)).numpy()
    return sorted_codes


def _make_keys(distances: Floats, keys: Keys, signs: Keys) -> Keys:
    """Convert distances to integers in the same order, in the memory ``keys``; -0 and 0 become the same."""
    bits = distances.view(np.int32)
    np.absolute(bits, out=keys)
    np.bitwise_and(bits, np.int32(-(2**31)), out=signs)
    return np.bitwise_xor(keys, signs, out=keys)


def _has_radix_sort() -> bool:
    """Tell whether torch sorts integers by radix. NumPy takes three times as long on processors of AMD's Zen 4."""
    has_openmp: bool = torch.backends.openmp.is_available()  # type: ignore[no-untyped-call]
    return has_openmp and "fbgemm" in torch.backends.quantized.supported_engines


MOST_COUNTED = 0.3
"""The largest share of chosen items for which `_rank_by_bisection` pays, as it sorts so much less than the row."""

SPREAD = 64
"""The number of counters of a row for the items behind all chosen ones: the threads of a GPU wait for a single one."""


def rank_block(distances: Tensor, query_labels: Tensor, gallery_labels: Tensor, k: int) -> Rankings:
    """Rank the gallery, without items at infinity, on any device, as `rank_rows` does. (Q, G), (Q, L), (G, L)"""
    depth = query_labels.shape[1]
    bits = torch.zeros_like(distances, dtype=torch.uint8 if depth <= 8 else torch.int64)
    for level in range(depth):  # bit i of an item is set if it has the query's label at level i
        bits |= (query_labels[:, level, None] == gallery_labels[:, level]).to(bits.dtype) << level
    bits.masked_fill_(distances == torch.inf, 0)
    numbers = bits.count_nonzero(dim=1)
    width = int(numbers.max())
    if width > MOST_COUNTED * bits.shape[1]:
        rows, positive_bits, ranks, neighbors = _rank_by_sorting(distances, bits)
    else:
        rows, positive_bits, ranks = _rank_by_bisection(distances, bits, numbers, width)
        neighbors = k_nearest(distances, k, rows_at_once=len(distances))[1]
    same = [(positive_bits >> level) & 1 for level in range(depth)]
    levels = torch.stack(same).sum(dim=0)

    def select(is_selected: Tensor) -> Tensor:
        places = is_selected.nonzero().squeeze(1)
        padded = pad_ranks(rows[places], ranks[places], len(distances))
        return padded if padded.shape[1] else padded.new_full((len(padded), 1), torch.inf)  # see `Rankings`

    at_least = [select(levels >= number) for number in range(1, depth + 1)]
    exactly = [*(select(levels == number) for number in range(1, depth)), at_least[-1]]
    return Rankings(tuple(map(select, same)), GradedRanks(exactly, at_least), neighbors[:, :k])


def _rank_by_sorting(distances: Tensor, bits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rank the items (Q, G) whose bits are set -> their rows, bits and ranks (P,), row by row, and the order of all."""
    _, order = sort_with_ties(distances)
    bits_in_order = bits.gather(1, order)
    rows, columns = bits_in_order.nonzero(as_tuple=True)
    return rows, bits_in_order[rows, columns], columns + 1, order


def _rank_by_bisection(distances: Tensor, bits: Tensor, numbers: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rank the items (Q, G) whose bits aren't 0, at most ``width`` in a row -> their rows, bits and ranks (P,)."""
    # A key is a distance with the item's index behind it, so that no two are equal; see `_make_keys` for the distance.
    keys = get_bits(distances)
    keys = (keys ^ ((keys >> 31) & LAST)).long() << 32
    keys |= torch.arange(keys.shape[1], device=keys.device)
    rows, columns = bits.nonzero(as_tuple=True)
    places = torch.arange(len(rows), device=rows.device) - (numbers.cumsum(0) - numbers)[rows]
    chosen = keys.new_full((len(keys), width), torch.iinfo(keys.dtype).max)
    chosen[rows, places] = keys[rows, columns]
    chosen = chosen.sort(dim=1).values
    bins = torch.searchsorted(chosen, keys)
    behind = width + torch.arange(keys.shape[1], device=keys.device) % SPREAD
    bins = torch.where(bins < numbers[:, None], bins, behind)
    counts = bins.new_zeros((len(keys), width + SPREAD), dtype=torch.int32)
    counts.scatter_add_(1, bins, counts.new_ones(1).expand_as(bins))
    is_chosen = torch.arange(width, device=keys.device) < numbers[:, None]
    items = chosen[is_chosen] & (2**32 - 1)
    return rows, bits[rows, items], counts[:, :width].cumsum(dim=1)[is_chosen]
