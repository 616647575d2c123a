"""Distractors: embeddings that are relevant to no query, and stand behind the gallery. They are counted, never kept."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dml.evaluation.distractor_folder import DistractorFolder
from dml.evaluation.items import Items, Positives
from dml.retrieval.gallery import Gallery
from dml.retrieval.rows import Embeddings, float32_rows, unit_rows
from dml.runtime.errors import InputError

Integers = npt.NDArray[np.int64]
Distractors = Iterable[Embeddings] | DistractorFolder

TILE_ROWS, TILE_ENTRIES, GROUP, FEW = 2**14, 2**23, 256, 64
"""Most rows and entries of a tile, queries that it is compared with at a time, and most items counted one by one."""


def count_nearer(queries: Items, gallery: Items, positives: Positives, distractors: Distractors) -> Integers:
    """Count the distractors before each gallery item that shares a level with a query, by which its rank grows.

    One at the same distance isn't before it. The memory is that of the counts and of a block, however many follow.
    The counts (Q, P) rise for each query, behind -1 where it has fewer items.

    Raises:
        InputError: if a block isn't (n, D), or holds a value that isn't finite.
    """
    counter = _Counter(queries, gallery, positives)
    if isinstance(distractors, DistractorFolder):
        identity = sha256(counter.queries.cpu().numpy().tobytes() + counter.bounds.tobytes())
        counts = distractors.count_files(counter.count, identity.digest())
    else:
        counts = counter.count(distractors, "distractors")
    counts[counter.bounds == -np.inf] = -1
    return np.sort(counts, axis=1)


class _Counter:
    """Counts the distractors that are nearer to a query than each of its items; counts of parts add up, in any order.

    Gallery and distractors are compared in tiles of one shape, so that equal embeddings are rounded alike.
    """

    def __init__(self, queries: Items, gallery: Items, positives: Positives) -> None:
        self._items, self.queries = queries, queries.embeddings
        # the product of a single query rounds its last columns differently, and those where threads share it
        self._tile_rows = min(TILE_ROWS, max(64, TILE_ENTRIES // self.queries.shape[1] // 64 * 64))
        vectors, bounds = gallery.embeddings, list[Tensor]()
        tiles = [self._make_tile(vectors[start:]) for start in range(0, len(vectors), self._tile_rows)]
        for start in range(0, len(self.queries), GROUP):
            group = self.queries[start : start + GROUP]
            with threadpool_limits(1, "blas"):
                distances = torch.cat([tile.distances(group) for tile in tiles], dim=1)[:, : len(vectors)].cpu()
            codes = np.empty(distances.shape, dtype=np.min_scalar_type(positives.largest_code))
            positives.code_items(range(start, start + len(group)), codes)
            bounds += [row[torch.from_numpy(code != 0)] for row, code in zip(distances, codes, strict=True)]
        self.bounds: npt.NDArray[np.float32] = pad_sequence(bounds, batch_first=True, padding_value=-torch.inf).numpy()
        """The distances (Q, P) of the items that share a level, filled up with -infinity."""

    def count(self, blocks: Iterable[Embeddings], name: str) -> Integers:
        """Count the distractors of some blocks (n, D), which error lines call by a name. -> (Q, P)"""
        counts, first, dimension = np.zeros(self.bounds.shape, np.int64), 0, self._items.embeddings.shape[1]
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(torch.get_num_threads()) as threads:  # a tile for each
            for block in blocks:
                if block.ndim != 2 or block.shape[1] != dimension:
                    raise InputError(f"{name}: embeddings of shape {(*block.shape,)}, expected (n, {dimension})")
                starts = range(0, len(block), self._tile_rows)
                counts += sum(threads.map(partial(self._count_tile, block, name, first), starts))
                first += len(block)
        return counts

    def _count_tile(self, block: Embeddings, name: str, first: int, start: int) -> Integers:
        rows = block[start : start + self._tile_rows]
        try:
            on_device = float32_rows(rows, name).to(self.queries.device) if self.queries.is_cuda else rows
            vectors = unit_rows(on_device, name)
        except InputError:
            for row in range(len(rows)):
                float32_rows(rows[row : row + 1], f"{name}, row {first + start + row:,} from 0 on")
            raise
        tile, groups = self._make_tile(vectors), [slice(i, i + GROUP) for i in range(0, len(self.queries), GROUP)]
        measured = ((tile.distances(self.queries[group])[:, : len(rows)], self.bounds[group]) for group in groups)
        return np.concatenate([_count_below(distances, bounds) for distances, bounds in measured])

    def _make_tile(self, vectors: Tensor) -> Gallery:
        return Gallery(F.pad(vectors, (0, 0, 0, self._tile_rows - len(vectors))))  # zeros below, or cut off


def _count_below(distances: Tensor, bounds: npt.NDArray[np.float32]) -> Integers:
    """Count the distances of each query below each of its bounds, none below -infinity. (B, N), (B, P) -> (B, P)"""
    if distances.is_cuda:
        thresholds = torch.from_numpy(bounds).to(distances.device)
        counted: Integers = torch.searchsorted(distances.sort(dim=1).values, thresholds).cpu().numpy()
        return counted
    counts = np.zeros(bounds.shape, dtype=np.int64)
    for row, row_bounds, row_counts in zip(distances.numpy(), bounds, counts, strict=True):
        number = np.count_nonzero(row_bounds > -np.inf)
        if number > FEW:  # sorting takes less time
            row_counts[:] = np.sort(row).searchsorted(row_bounds)
        else:
            row_counts[:number] = [np.count_nonzero(row < bound) for bound in row_bounds[:number]]
    return counts
