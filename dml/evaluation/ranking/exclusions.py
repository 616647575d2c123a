"""The gallery items that a query's ranking excludes: the query itself, or copies of it under other names."""

import numpy as np
import numpy.typing as npt
import torch

from dml.evaluation.ranking.items import Items
from dml.retrieval.gallery import Gallery

Integers = npt.NDArray[np.int64]

NONE = -1
"""The index that fills the rows of queries that exclude fewer items than others."""


def exclude_queries(queries: int) -> Integers:
    """Return the exclusions of queries that are their own gallery: each query excludes itself. -> (Q, 1)"""
    return np.arange(queries, dtype=np.int64)[:, None]


def find_copies(queries: Integers, gallery: Integers) -> Integers:
    """Find the gallery items whose file has the content of the query's file. (Q,), (G,) -> (Q, M), padded with `NONE`

    Args:
        queries: number of the content of each query's file; a query with a number below 0 has no copy.
        gallery: number of the content of each gallery item's file.
    """
    order = np.argsort(gallery, kind="stable")
    first, last = (np.searchsorted(gallery[order], queries, side) for side in ("left", "right"))
    numbers = np.where(queries < 0, 0, last - first)
    copies = np.arange(numbers.max(initial=0))
    if not len(copies):
        return np.empty((len(queries), 0), dtype=np.int64)
    positions = np.minimum(first[:, None] + copies, len(order) - 1)
    return np.where(copies < numbers[:, None], order[positions], NONE)


def find_nearest_items(queries: Items, gallery: Items, rows: range, block_size: int) -> Integers:
    """Find the nearest gallery item of each query, which HAPPIER's release excludes; ties are in the gallery's order.

    Args:
        queries: items of all queries.
        gallery: items of the gallery, on the queries' device.
        rows: queries to search for; the other queries exclude nothing.
        block_size: number of queries whose distances to the gallery are in memory at a time.

    Returns:
        Indices (Q, 1) of gallery items, `NONE` for the other queries.
    """
    items = Gallery(gallery.gallery_vectors())
    nearest = torch.full((len(queries.labels), 1), NONE)
    for start in range(rows.start, rows.stop, block_size):
        block = slice(start, min(start + block_size, rows.stop))
        nearest[block, 0] = items.distances(queries.query_vectors(block)).argmin(dim=1).cpu()
    return nearest.numpy()
