"""The input of a ranking: embeddings with labels, which items are positives, and which are excluded."""

import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.data.table import EVERY_LEVEL, ImageTable, find_equal, renumber_pairs
from dml.evaluation.geometry import UnitEmbeddings
from dml.retrieval.gallery import Gallery
from dml.retrieval.rows import Embeddings
from dml.runtime.errors import InputError
from dml.runtime.text import printable

logger = logging.getLogger(__name__)

Labels = Tensor | npt.NDArray[Any]


class Items(NamedTuple):
    """Embeddings (N, D) float32 of unit length, and labels (N, L) integers, column 0 the finest level."""

    embeddings: Tensor
    labels: npt.NDArray[Any]

    def take(self, rows: npt.NDArray[np.int64], level: int | None = None) -> "Items":
        """Return the items of some rows, with the labels of one level or of all levels."""
        if level is None and len(rows) == len(self.labels) and (rows == np.arange(len(rows))).all():
            return self  # without a copy of the embeddings
        labels = self.labels[rows] if level is None else self.labels[rows, level, None]
        return Items(self.embeddings[torch.from_numpy(rows).to(self.embeddings.device)], labels)


def check_items(embeddings: Embeddings, labels: Labels, name: str) -> Items:
    """Check embeddings and labels, and scale the embeddings to unit length."""
    unit, columns = UnitEmbeddings.normalize(embeddings, name), check_labels(labels, name)
    if len(unit) != len(columns):
        raise InputError(f"{name}: {len(unit)} embeddings, {len(columns)} labels")
    return Items(unit.rows, columns)


def check_labels(labels: Labels, name: str) -> npt.NDArray[Any]:
    """Check labels of the embeddings that error lines ``name``. (N,) or (N, L) -> (N, L)"""
    columns = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if columns.ndim == 1:
        columns = columns[:, None]
    if columns.ndim != 2 or not columns.shape[1]:
        raise InputError(f"{name}_labels: shape {tuple(columns.shape)}, expected (N,) or (N, L) with L >= 1")
    if columns.dtype.kind not in "biu":  # floats would let NaN be a class unequal to itself
        raise InputError(f"{name}_labels: {columns.dtype}, expected integers")
    return columns


def check_query_and_gallery(
    query: Embeddings, query_labels: Labels, gallery: Embeddings | None, gallery_labels: Labels | None
) -> tuple[Items, Items | None]:
    """Check queries and a gallery; without a gallery the queries are their own."""
    queries = check_items(query, query_labels, "query")
    if gallery is None and gallery_labels is None:
        return queries, None
    if gallery is None or gallery_labels is None:
        present, missing = ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        raise InputError(f"{present} is given without {missing}: a gallery needs both")
    items = check_items(gallery, gallery_labels, "gallery")
    for property_name, in_queries, in_gallery in (
        ("embedding dimensions", queries.embeddings.shape[1], items.embeddings.shape[1]),
        ("label levels", queries.labels.shape[1], items.labels.shape[1]),
        ("device", queries.embeddings.device, items.embeddings.device),
    ):
        if in_queries != in_gallery:
            raise InputError(f"query and gallery differ in {property_name}: {in_queries} and {in_gallery}")
    if np.result_type(queries.labels, items.labels).kind == "f":  # NumPy would compare them after rounding
        raise InputError(
            f"query_labels are {queries.labels.dtype}, gallery_labels {items.labels.dtype}; give both int64"
        )
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


def _hash_rows(items: Items) -> npt.NDArray[np.int64]:
    """Return numbers of the vectors, of the vectors with their finest labels, and of these labels. -> (3, N)"""
    blocks = (block.cpu() + 0.0 for block in torch.split(items.embeddings, 2**14))  # -0 becomes 0
    vectors = np.array([hash(vector.tobytes()) for block in blocks for vector in block.numpy()], dtype=np.int64)
    classes = items.labels[:, 0].astype(np.int64)
    return np.stack([vectors, vectors * 3 + classes, classes])


Integers = npt.NDArray[np.int64]

NONE = -1
"""The index that fills the rows of queries that exclude fewer items than others."""


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


Codes = npt.NDArray[np.unsignedinteger[Any]]


class Positives:
    """The gallery items that share levels with each query; without a gallery the queries are their own.

    Args:
        excluded: (Q, M) the gallery items, no two equal, that each query excludes, padded with -1; None excludes
            the query itself from a gallery of the queries, and nothing from another one.
    """

    def __init__(
        self, queries: npt.NDArray[Any], gallery: npt.NDArray[Any] | None, excluded: Integers | None = None
    ) -> None:
        if excluded is None:
            excluded = np.arange(len(queries), dtype=np.int64)[:, None][:, : 1 if gallery is None else 0]
        self.excluded = excluded
        self.depth: int = queries.shape[1]
        labels = queries if gallery is None else gallery
        has_item, items = excluded >= 0, np.maximum(excluded, 0)
        self._order, self._bounds, self._counts = list[Integers](), list[Integers](), list[Integers]()
        for level in range(self.depth):
            column, query_column = labels[:, level], queries[:, level]
            order = np.argsort(column, kind="stable")
            first, last = (np.searchsorted(column[order], query_column, side) for side in ("left", "right"))
            self._order.append(order)
            self._bounds.append(np.stack([first, last], axis=1))
            excluded_positives = (query_column[:, None] == column[items]) & has_item
            self._counts.append(last - first - excluded_positives.sum(axis=1))
        self.is_tree = _is_tree(queries if gallery is None else np.concatenate([queries, gallery]))
        """Whether items that share a level share all coarser ones."""

    def _find(self, level: int, query: int) -> Integers:
        """Find the items (P,) that share a level with a query, also the excluded ones."""
        first, last = self._bounds[level][query]
        return self._order[level][first:last]

    def count(self, level: int) -> Integers:
        """Count the positives of each query at a level. -> (Q,)"""
        return self._counts[level]

    def find_queries_with_any(self, queries: range | slice = slice(None)) -> dict[str, npt.NDArray[np.bool_]]:
        """Return {"level0", ...: (Q,) whether some queries have a positive at the level, "": whether at any level}."""
        rows = slice(queries.start, queries.stop)
        by_level = [self.count(level)[rows] > 0 for level in range(self.depth)]
        return {f"level{level}": has_any for level, has_any in enumerate(by_level)} | {
            "": np.logical_or.reduce(by_level)
        }

    @property
    def largest_code(self) -> int:
        """The largest code of an item, see `code_items`."""
        return self.depth if self.is_tree else (1 << self.depth) - 1

    def code_items(self, queries: range, codes: Codes) -> Integers:
        """Write codes (Q, G) for what each gallery item shares with each query -> how many items share any level (Q,).

        In a tree, the code is the number of levels that the item shares. Otherwise bit i is set if the item has the
        query's label at level i. Items that the query excludes have code 0.
        """
        codes.fill(0)
        for query, row in zip(queries, codes, strict=True):
            for level in reversed(range(self.depth)):  # items of finer levels overwrite the codes of coarser ones
                items = self._find(level, query)
                if self.is_tree:
                    row[items] = self.depth - level
                else:
                    row[items] |= 1 << level
        excluded = self.excluded[queries.start : queries.stop]
        rows, columns = np.nonzero(excluded >= 0)
        codes[rows, excluded[rows, columns]] = 0
        if self.is_tree:
            return self._counts[-1][queries.start : queries.stop]  # those that share any level
        return np.array([np.count_nonzero(row) for row in codes])

    def count_shared(self, codes: Codes) -> Codes:
        """Return the number of levels that items with some codes share. (P,) -> (P,)"""
        return codes if self.is_tree else np.bitwise_count(codes)


def _is_tree(labels: npt.NDArray[Any]) -> bool:
    """Return whether two items that share any level share the next coarser one."""
    for finer, coarser in pairwise(labels.T):
        _, firsts, classes = np.unique(finer, return_index=True, return_inverse=True)
        if (coarser != coarser[firsts][classes]).any():
            return False
    return True


Rows = npt.NDArray[np.int64]


class BenchmarkList(NamedTuple):
    """Queries, the gallery that they search, and the levels at which the ranking is evaluated."""

    queries: Rows  # (Q,) rows of the table
    gallery: Rows | None  # (G,) rows of the table; None if the queries are their own gallery
    level: int | None  # the only level at which the list is evaluated; None for all levels
    excluded: Rows | None  # (Q, M) as `Positives` takes them

    @property
    def searched(self) -> Rows:
        """The rows that queries search: the gallery, or the queries themselves."""
        return self.queries if self.gallery is None else self.gallery

    def metric_name(self, metric: str) -> str:
        """Return the name that a metric of the list has in metrics.json, which holds those of all lists."""
        return metric if self.level is None else f"level{self.level}/{metric.rpartition('/')[2]}"

    def level_name(self, level: str) -> str:
        """Return what stands before the / in the name that a metric of a level has in metrics.json."""
        return level if self.level is None else f"level{self.level}"


def has_level_lists(table: ImageTable) -> bool:
    """Return whether the table has a separate list for each level, as DyML does, instead of one for all levels."""
    return bool((table.benchmark != EVERY_LEVEL).any())


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
    for benchmark in benchmark_lists(part) if len(part) else ():
        gallery = None if benchmark.gallery is None else part.labels[benchmark.gallery]
        positives = Positives(part.labels[benchmark.queries], gallery, benchmark.excluded)
        levels = range(len(part.levels)) if benchmark.level is None else (benchmark.level,)
        for level in levels:
            if not positives.count(level).any():
                raise InputError(_describe(part, benchmark, level))


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


def _describe(part: ImageTable, benchmark: BenchmarkList, level: int) -> str:
    source, name = printable(part.source or "dataset"), part.levels[level]
    number, split = len(benchmark.queries), part.split[benchmark.queries[0]]
    if split == "query":
        return (
            f"{source}: none of the {number:,} queries has another image of its {name} in the gallery, so nothing can "
            "be evaluated; the gallery needs images of the queries' classes"
        )
    return (
        f"{source}: none of the {number:,} images in the {split} split has another image of its {name} there, "
        "so nothing can be evaluated; a class needs two images or more in a split"
    )
