"""Which gallery items are no part of a query's ranking: the query itself, or its copies under other names."""

import numpy as np
import numpy.typing as npt
import torch

from dml.evaluation.items import Items
from dml.retrieval.gallery import Gallery

Integers = npt.NDArray[np.int64]

NONE = -1
"""Fills the rows of queries that exclude fewer items than others."""


def queries_themselves(queries: int) -> Integers:
    """The exclusions of queries that are their own gallery: each excludes itself. -> (Q, 1)"""
    return np.arange(queries, dtype=np.int64)[:, None]


def same_contents(queries: Integers, gallery: Integers) -> Integers:
    """The gallery items whose file has the content of the query's. (Q,), (G,) -> (Q, M), rows padded with `NONE`

    Args:
        queries: the number of each query's content; below 0, it has no copy.
        gallery: the number of each item's content.
    """
    order = np.argsort(gallery, kind="stable")
    first, last = (np.searchsorted(gallery[order], queries, side) for side in ("left", "right"))
    numbers = np.where(queries < 0, 0, last - first)
    copies = np.arange(numbers.max(initial=0))
    if not len(copies):
        return np.empty((len(queries), 0), dtype=np.int64)
    places = np.minimum(first[:, None] + copies, len(order) - 1)
    return np.where(copies < numbers[:, None], order[places], NONE)


def nearest_items(queries: Items, gallery: Items, rows: range, at_once: int) -> Integers:
    """The nearest gallery item of each query, the first of equal ones: what HAPPIER's release takes for the query.

    Args:
        queries: all queries.
        gallery: on the queries' device.
        rows: the queries to find it for; the others exclude nothing.
        at_once: queries whose distances to the gallery are in memory at a time.

    Returns:
        (Q, 1)
    """
    items = Gallery(gallery.embeddings)
    nearest = torch.full((len(queries.labels), 1), NONE)
    for start in range(rows.start, rows.stop, at_once):
        block = slice(start, min(start + at_once, rows.stop))
        nearest[block, 0] = items.distances(queries.embeddings[block]).argmin(dim=1).cpu()
    return nearest.numpy()
