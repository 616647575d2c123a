"""The input of a ranking: embeddings with labels, which items are positives, and which are excluded."""

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.data.table import EVERY_LEVEL, ImageTable, find_equal, renumber_pairs
from dml.metrics.pairs import LabeledPairs, list_excluded
from dml.retrieval.gallery import Gallery
from dml.retrieval.rows import Embeddings, UnitEmbeddings
from dml.runtime.errors import InputError
from dml.runtime.text import printable

logger = logging.getLogger(__name__)

Labels = Tensor | npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.unsignedinteger[Any]]

NONE = -1
"""The index that fills the rows of queries that exclude fewer items than others."""


class Items(NamedTuple):
    """Embeddings (N, D) float32 of unit length, and labels (N, L) int64, column 0 the finest level."""

    embeddings: Tensor
    labels: Integers

    def take(self, rows: Integers, level: int | None = None) -> "Items":
        """Return the items of some rows, with the labels of one level or of all levels."""
        if level is None and len(rows) == len(self.labels) and (rows == np.arange(len(rows))).all():
            return self  # without a copy of the embeddings
        labels = self.labels[rows] if level is None else self.labels[rows, level, None]
        return Items(self.embeddings[torch.from_numpy(rows).to(self.embeddings.device)], labels)


def check_items(embeddings: Embeddings | UnitEmbeddings, labels: Labels, name: str) -> Items:
    """Check embeddings and labels (N,) or (N, L), and scale the embeddings to unit length."""
    unit = UnitEmbeddings.normalize(embeddings, name)
    columns = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if columns.ndim == 1:
        columns = columns[:, None]
    fault = ""
    if columns.ndim != 2 or not columns.shape[1]:
        fault = f"shape {tuple(columns.shape)}, expected (N,) or (N, L) with L >= 1"
    elif columns.dtype.kind not in "biu":  # floats would let NaN be a class unequal to itself
        fault = f"{columns.dtype}, expected integers"
    elif len(unit) != len(columns):
        fault = f"{len(unit)} embeddings, {len(columns)} labels"
    if fault:
        raise InputError(f"{name}_labels: {fault}")
    return Items(unit.rows, columns.astype(np.int64, copy=False))


def check_query_and_gallery(
    query: Embeddings, query_labels: Labels, gallery: Embeddings | None, gallery_labels: Labels | None
) -> tuple[Items, Items | None]:
    """Check queries and a gallery; without a gallery the queries are their own."""
    queries = check_items(query, query_labels, "query")
    if gallery is None and gallery_labels is None:
        return queries, None
    if gallery is None or gallery_labels is None:
        raise InputError("gallery and gallery_labels: one is given without the other")
    items = check_items(gallery, gallery_labels, "gallery")
    for kind, in_queries, in_gallery in (
        ("embedding dimensions", queries.embeddings.shape[1], items.embeddings.shape[1]),
        ("label levels", queries.labels.shape[1], items.labels.shape[1]),
    ):
        if in_queries != in_gallery:
            raise InputError(f"query and gallery differ in {kind}: {in_queries} and {in_gallery}")
    return queries, items


def check_copies(queries: Items, gallery: Items, remedy: str) -> None:
    """Warn of queries that are in their gallery under another row: with an equal vector and finest label.

    Vectors of 0 are left out, which no ranking finds first, and so are sets that have collapsed: to one vector, or to
    one vector for each class.
    """
    own, others = _hash_rows(queries), _hash_rows(gallery)
    is_copy = np.isin(own[1], others[1]) & queries.embeddings.any(dim=1).cpu().numpy()
    num_vectors, num_pairs, num_classes = (len(np.unique(row)) for row in np.concatenate([own, others], axis=1))
    is_one_of_each_class = num_pairs == num_classes < max(own.shape[1], others.shape[1])
    if not is_copy.any() or num_vectors == 1 or is_one_of_each_class:
        return
    line = (
        f"{is_copy.sum():,} of {len(is_copy):,} queries are in their gallery under another row, with an equal vector "
        f"and label, and find themselves; {remedy}"
    )
    if is_copy.all():
        raise InputError(line)
    logger.warning(line)


def _hash_rows(items: Items) -> Integers:
    """Return numbers of the vectors, of the vectors with their finest labels, and of these labels. -> (3, N)"""
    blocks = (block.cpu() + 0.0 for block in torch.split(items.embeddings, 2**14))  # -0 becomes 0
    vectors = np.array([hash(vector.tobytes()) for block in blocks for vector in block.numpy()], dtype=np.int64)
    return np.stack([vectors, vectors * 3 + items.labels[:, 0], items.labels[:, 0]])


def pair_items(queries: Items, gallery: Items | None, excluded: Integers | None, level: int = 0) -> LabeledPairs:
    """Return the pairs of two queries, or of a query and a gallery item, with the labels of a level."""
    if gallery is None:
        return LabeledPairs(queries.embeddings, queries.labels[:, level])
    labels, gallery_labels = queries.labels[:, level], gallery.labels[:, level]
    return LabeledPairs(queries.embeddings, labels, gallery.embeddings, gallery_labels, excluded)


def pad_pairs(pairs: Integers, queries: int) -> Integers:
    """Arrange pairs of a query and an item by query, equal ones once. (P, 2) -> (Q, M), rising, padded with `NONE`

    >>> pad_pairs(np.array([[2, 5], [0, 7], [2, 3]]), queries=3).tolist()
    [[7, -1], [-1, -1], [3, 5]]
    """
    rows, items = np.unique(pairs, axis=0).T
    numbers = np.bincount(rows, minlength=queries)
    padded = np.full((queries, numbers.max(initial=0)), NONE)
    padded[rows, np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers, numbers)] = items
    return padded


def find_nearest_items(queries: Items, gallery: Items, rows: range, block_size: int) -> Integers:
    """Find each query's nearest gallery item (Q, 1), which HAPPIER's release excludes; outside of ``rows`` `NONE`."""
    items = Gallery(gallery.embeddings)
    nearest = torch.full((len(queries.labels), 1), NONE)
    for start in range(rows.start, rows.stop, block_size):
        block = slice(start, min(start + block_size, rows.stop))
        nearest[block, 0] = items.distances(queries.embeddings[block]).argmin(dim=1).cpu()
    return nearest.numpy()


class Positives:
    """The gallery items that share levels with each query; without a gallery the queries are their own.

    Args:
        excluded: (Q, M) the gallery items, no two equal, that each query excludes, padded with -1; None excludes
            the query itself from a gallery of the queries, and nothing from another one.
    """

    def __init__(self, queries: Integers, gallery: Integers | None, excluded: Integers | None = None) -> None:
        if excluded is None:
            excluded = np.arange(len(queries))[:, None][:, : 1 if gallery is None else 0]
        labels = queries if gallery is None else gallery
        self.excluded, self.depth = excluded, int(queries.shape[1])
        self._items, self._counts = list[tuple[Integers, Integers]](), list[Integers]()
        for column, query_column in zip(labels.T, queries.T, strict=True):
            order = np.argsort(column, kind="stable")
            ends = [np.searchsorted(column[order], query_column, side) for side in ("left", "right")]
            is_positive = (query_column[:, None] == column[np.maximum(excluded, 0)]) & (excluded >= 0)
            self._items.append((order, np.stack(ends, axis=1)))  # those of one class stand side by side
            self._counts.append(ends[1] - ends[0] - is_positive.sum(axis=1))

    def count(self, level: int) -> Integers:
        """Count the positives of each query at a level. -> (Q,)"""
        return self._counts[level]

    def find_queries_with_any(self, queries: range) -> dict[str, npt.NDArray[np.bool_]]:
        """Return {"level0", ...: (Q,) whether some queries have a positive at the level, "": whether at any level}."""
        by_level = [counts[queries.start : queries.stop] > 0 for counts in self._counts]
        return {f"level{level}": has_any for level, has_any in enumerate(by_level)} | {"": np.any(by_level, axis=0)}

    @property
    def code_type(self) -> npt.DTypeLike:
        """The type of the largest code of an item, see `code_items`."""
        return np.min_scalar_type((1 << self.depth) - 1)

    def code_items(self, queries: range, codes: Codes) -> Integers:
        """Write codes (Q, G) for what each gallery item shares with each query -> how many items share any level (Q,).

        Bit i is set if the item has the query's label at level i. Items that the query excludes have code 0.
        """
        codes.fill(0)
        for level, (order, bounds) in enumerate(self._items):
            for query, row in zip(queries, codes, strict=True):
                row[order[slice(*bounds[query])]] |= 1 << level
        rows = slice(queries.start, queries.stop)
        codes[list_excluded(self.excluded[rows])] = 0
        return self._counts[0][rows] if self.depth == 1 else np.array([np.count_nonzero(row != 0) for row in codes])


class BenchmarkList(NamedTuple):
    """Queries, the gallery that they search, and the levels at which the ranking is evaluated."""

    queries: Integers  # (Q,) rows of the table
    gallery: Integers | None  # (G,) rows of the table; None if the queries are their own gallery
    level: int | None  # the only level at which the list is evaluated; None for all levels
    excluded: Integers | None  # (Q, M) as `Positives` takes them

    @property
    def searched(self) -> Integers:
        """The rows that queries search: the gallery, or the queries themselves."""
        return self.queries if self.gallery is None else self.gallery

    def split_items(self, items: Items) -> tuple[Items, Items | None]:
        """Return the queries and the gallery of the list among the items of the table."""
        gallery = None if self.gallery is None else items.take(self.gallery, self.level)
        return items.take(self.queries, self.level), gallery

    def metric_name(self, metric: str) -> str:
        """Return the name that a metric of the list has in metrics.json, which holds those of all lists."""
        return metric if self.level is None else f"level{self.level}/{metric.rpartition('/')[2]}"

    def level_name(self, level: str) -> str:
        """Return what stands before the / in the name that a metric of a level has in metrics.json."""
        return level if self.level is None else f"level{self.level}"


def benchmark_lists(table: ImageTable) -> Iterator[BenchmarkList]:
    """Yield the lists of a table whose rows are one evaluation, see `dml.evaluation.Evaluator`."""
    splits = {str(split) for split in np.unique(table.split)}
    paired = splits == {"query", "gallery"}
    if not paired and (len(splits) != 1 or splits & {"query", "gallery", ""}):
        expected = "expected query and gallery, or one of the others"
        raise InputError(
            f"{printable(table.source or 'dataset')}: evaluation of the splits {sorted(splits)}: {expected}"
        )
    for level in sorted({*table.benchmark.tolist()} - {EVERY_LEVEL}) or [EVERY_LEVEL]:
        inside = np.isin(table.benchmark, (EVERY_LEVEL, level))
        queries = gallery = np.flatnonzero(inside)
        listed_level = None if level == EVERY_LEVEL else level
        if paired:
            queries, gallery = (np.flatnonzero(inside & (table.split == split)) for split in ("query", "gallery"))
        copies = find_equal(table.content[queries], table.content[gallery])
        if paired or len(copies) > len(queries):  # some of which are parts of one image
            pairs = np.concatenate([copies, renumber_pairs(table.excluded, len(table), queries, gallery)])
            yield BenchmarkList(queries, gallery, listed_level, pad_pairs(pairs, len(queries)))
        else:
            yield BenchmarkList(queries, None, listed_level, None)


def check_queries(part: ImageTable) -> None:
    """Make sure that at each evaluated level some query has a positive, which evaluations else find at their end."""
    for queries, gallery, level, excluded in benchmark_lists(part) if len(part) else ():
        positives = Positives(part.labels[queries], None if gallery is None else part.labels[gallery], excluded)
        for missing in range(len(part.levels)) if level is None else (level,):
            if positives.count(missing).any():
                continue
            split, is_paired = part.split[queries[0]], part.split[queries[0]] == "query"
            asked = f"{len(queries):,} queries" if is_paired else f"{len(queries):,} images in the {split} split"
            place = "in the gallery" if is_paired else "there"
            raise InputError(
                f"{printable(part.source or 'dataset')}: none of the {asked} has another image of its "
                f"{part.levels[missing]} {place}, so nothing can be evaluated; a query needs another image of its class"
            )


def is_of_one_class(part: ImageTable) -> bool:
    """Return whether all images are of one class at the finest level, so that every neighbor is right."""
    return len(np.unique(part.labels[:, 0])) == 1


def check_validation_classes(part: ImageTable) -> None:
    """Make sure that validations can differ, see `is_of_one_class`."""
    if is_of_one_class(part):
        raise InputError(
            f"{printable(part.source or 'dataset')}: the images in the {part.split[0]} split are all of one "
            f"{part.levels[0]}, so that every neighbor is right, and no checkpoint better than another; two are "
            "needed, or trainer.val_check_interval=null, which validates never"
        )
