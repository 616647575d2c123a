"""Distractors: embeddings that are relevant to no query, and stand behind the gallery. They are counted, never kept."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from dml.evaluation.distractor_folder import DistractorFolder
from dml.evaluation.items import Items, Positives
from dml.ops.threads import find_thread_pools, limit_to_one_thread
from dml.retrieval.gallery import Gallery, write_distances
from dml.retrieval.rows import Embeddings, float32_rows
from dml.runtime.errors import InputError

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

TILE_ENTRIES, MOST_ROWS = 2**22, 2**14
"""The largest numbers of entries and of rows of a tile: of distractors that are compared together."""

GROUP = 256
"""The number of queries that a tile is compared with at a time, which makes 16 MB of distances."""

FEW = 64
"""The number of positives up to which counting what is nearer than each is faster than sorting the distractors."""


class NearerDistractors(NamedTuple):
    """The number of distractors before each item that shares a level with a query.

    ``counts`` (P,) rise for each query, and ``starts`` (Q + 1,) is where those of each query begin.
    """

    counts: Integers
    starts: Integers

    def select(self, queries: range) -> Integers:
        """Return the counts of some queries."""
        return self.counts[self.starts[queries.start] : self.starts[queries.stop]]


Distractors = Iterable[Embeddings] | DistractorFolder


class DistractorCounter:
    """Counts the distractors that are nearer to a query than each of its positives, which move back by as many.

    A distractor at the distance of a positive stands behind it, as behind the whole gallery. Counts of parts add up, in
    any order. Distractors equal to an item of the gallery have its distance, to the last bit; all others are compared
    in tiles of one shape, so that equal ones are rounded alike.

    Args:
        queries: items that are ranked for.
        gallery: items with the positives, on the same device.
        positives: positives of the queries in the gallery.
        block_size: number of queries whose distances to the gallery are in memory at a time.
    """

    def __init__(self, queries: Items, gallery: Items, positives: Positives, block_size: int) -> None:
        self._items = queries
        self._queries = queries.query_vectors(slice(None))
        self._gallery = Gallery(gallery.gallery_vectors())
        self._positives = positives
        rows = range(len(queries.labels))
        self._blocks = [rows[start : start + block_size] for start in rows[::block_size]]
        parts = [self._sort_positives(block) for block in self._blocks]
        self._bounds = np.concatenate([bounds for bounds, _ in parts])
        self._starts = np.append(0, np.cumsum(np.concatenate([numbers for _, numbers in parts])))
        self.tile_size = min(max(TILE_ENTRIES // self._queries.shape[1], 1), MOST_ROWS)

    def count(self, distractors: Distractors) -> NearerDistractors:
        """Count all distractors.

        Raises:
            InputError: if a block isn't (n, D), or holds a value that isn't finite.
        """
        if isinstance(distractors, DistractorFolder):
            counts = distractors.count_shards(self.count_blocks, self._hash_inputs())
        else:
            counts = self.count_blocks(distractors)
        nearer, copies = np.split(counts, [len(self._bounds)])
        items = np.flatnonzero(copies)
        for block in self._blocks if len(items) else ():
            distances = self._measure(block)[:, torch.from_numpy(items).to(self._queries.device)].cpu().numpy()
            for query, row in zip(block, distances, strict=True):
                span = slice(self._starts[query], self._starts[query + 1])
                nearer[span] += copies[items] @ (row[:, None] < self._bounds[span])
        return NearerDistractors(nearer, self._starts)

    def count_blocks(self, blocks: Iterable[Embeddings], name: str = "distractors") -> Integers:
        """Count some distractors, blocks (n, D) -> (P + G,)

        The first P are the nearer ones of each positive; the last G are the copies of each gallery item, which the
        first leave out. The memory is that of two blocks, and of a tile for each thread.
        """
        counts = np.zeros(len(self._bounds) + len(self._gallery), dtype=np.int64)
        add, waiting, first = _Adder(counts), list[Future[None]](), 0
        num_threads = torch.get_num_threads()
        with (
            find_thread_pools().limit(limits=1, user_api="blas"),
            ThreadPoolExecutor(num_threads, initializer=limit_to_one_thread) as threads,
        ):
            for block in blocks:
                self._check_block(block, name)
                tiles = [
                    threads.submit(self._count_tile, block[start : start + self.tile_size], name, first + start, add)
                    for start in range(0, len(block), self.tile_size)
                ]
                for tile in waiting:  # the block before, so that the next one is read while this one is counted
                    tile.result()
                first, waiting = first + len(block), tiles
            for tile in waiting:
                tile.result()
        return counts

    def _hash_inputs(self) -> bytes:
        """Hash the queries, the gallery, and the distances of the positives: counts of others can't be added."""
        digest = sha256()
        for array in (self._queries.cpu().numpy(), self._gallery.rows.cpu().numpy(), self._bounds, self._starts):
            digest.update(array.tobytes())
        return digest.digest()

    def _check_block(self, block: Embeddings, name: str) -> None:
        dimension = self._items.embeddings.shape[1]
        if block.ndim != 2 or block.shape[1] != dimension:
            raise InputError(f"{name}: embeddings of shape {(*block.shape,)}, expected (n, {dimension})")

    def _measure(self, block: range) -> Tensor:
        """Compute the distances of a block's queries to the whole gallery, nothing excluded. -> (B, G)"""
        return self._gallery.distances(self._queries[block.start : block.stop])

    def _sort_positives(self, block: range) -> tuple[Floats, Integers]:
        """Return the distances of the items that share a level, rising for each query, and the number of each query."""
        distances = self._measure(block)
        codes = np.empty(distances.shape, dtype=np.min_scalar_type(self._positives.largest_code))
        numbers = self._positives.code_items(block, codes)
        rows, items = (torch.from_numpy(part) for part in codes.nonzero())
        chosen: Floats = distances[rows.to(distances.device), items.to(distances.device)].cpu().numpy()
        return chosen[np.lexsort((chosen, rows.numpy()))], numbers

    def _count_tile(self, rows: Embeddings, name: str, first: int, add: "_Adder") -> None:
        """Count the distractors ``rows``, the first of which has the number ``first``."""
        tile = self._make_tile(rows, name, first)
        equal = np.full(len(tile), -1)
        equal[: len(rows)] = self._gallery.find_equal(tile[: len(rows)])
        left_out = (equal >= 0) | (np.arange(len(tile)) >= len(rows))
        columns = torch.from_numpy(left_out.nonzero()[0]).to(tile.device)
        memory = tile.new_empty(GROUP, len(tile))
        for start in range(0, len(self._queries), GROUP):
            starts = self._starts[start : start + GROUP + 1]
            if starts[0] == starts[-1]:
                continue
            queries = self._queries[start : start + GROUP]
            distances = memory[: len(queries)]
            write_distances(queries, tile, distances)
            distances[:, columns] = torch.inf
            count = _count_on_gpu if tile.is_cuda else _count_by_row
            add(slice(starts[0], starts[-1]), count(distances, self._bounds[starts[0] : starts[-1]], np.diff(starts)))
        add(slice(len(self._bounds), None), np.bincount(equal[equal >= 0], minlength=len(self._gallery)))

    def _make_tile(self, rows: Embeddings, name: str, first: int) -> Tensor:
        """Return the vectors of some distractors, filled up with zeros. (n, D) -> (`tile_size`, D')"""
        try:
            checked = float32_rows(rows, name)
        except InputError:
            for number in range(len(rows)):
                float32_rows(rows[number : number + 1], f"{name}, row {first + number:,} from 0 on")
            raise
        padded = F.pad(checked, (0, 0, 0, self.tile_size - len(rows))).to(self._queries.device)
        return self._items.geometry.gallery_vectors(self._items.geometry.scale(padded, name))


class _Adder:
    """Adds to parts of counts, for several threads."""

    def __init__(self, counts: Integers) -> None:
        self._counts, self._lock = counts, Lock()

    def __call__(self, part: slice, numbers: Integers) -> None:
        with self._lock:
            self._counts[part] += numbers


def _count_by_row(distances: Tensor, bounds: Floats, numbers: Integers) -> Integers:
    """Count the distances of each query below each of its bounds, which rise. (B, N), (P,), (B,) -> (P,)"""
    counts = np.empty(len(bounds), dtype=np.int64)
    stops = np.cumsum(numbers)
    for row, start, stop in zip(distances.numpy(), (stops - numbers).tolist(), stops.tolist(), strict=True):
        if stop - start > FEW:
            counts[start:stop] = np.sort(row).searchsorted(bounds[start:stop])
        else:
            counts[start:stop] = [np.count_nonzero(row < bound) for bound in bounds[start:stop]]
    return counts


def _count_on_gpu(distances: Tensor, bounds: Floats, numbers: Integers) -> Integers:
    """Do the same as `_count_by_row`, for all queries together."""
    has_bound = np.arange(numbers.max(initial=0)) < numbers[:, None]
    table = np.full(has_bound.shape, -np.inf, dtype=np.float32)
    table[has_bound] = bounds
    columns = torch.from_numpy(table).to(distances.device)
    if columns.shape[1] > FEW:
        counts = torch.searchsorted(distances.sort(dim=1).values, columns)
    else:
        counts = torch.stack([(distances < column[:, None]).sum(dim=1) for column in columns.unbind(1)], dim=1)
    selected: Integers = counts.cpu().numpy()[has_bound]
    return selected
