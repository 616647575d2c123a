"""Exact counts of pairs by their similarity, however many: computed in blocks, of which only the counts are kept."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.precision import without_tf32

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HALF = 2**16
"""The number of bins of similarities from 0 to 1; a power of 2, so that scaling a float32 by it is exact."""

EDGES: Floats = np.arange(-HALF, HALF + 2) / HALF
"""The similarities (E,) at which all pairs are counted: from -1 to just above 1, in steps of 1 / `HALF`."""

BLOCK = 2**21
"""The number of similarities that are held at a time."""

EXCLUDED = -2.0
"""The similarity of a pair that doesn't count."""


class PairCounts(NamedTuple):
    """How many pairs of one class (T,), and of others, have at least each of T ascending similarities."""

    similarities: Floats
    positives: Integers
    negatives: Integers


class ClassCounts(NamedTuple):
    """How many pairs of each class have some similarity or a larger one."""

    positives: Integers  # (C, T) both images are in the class
    negatives: Integers  # (C, T) one of the two is
    all_positives: Integers
    all_negatives: Integers


def list_excluded(excluded: Integers) -> tuple[Integers, Integers]:
    """List the pairs of a row and an item that are in (Q, M), padded with -1 -> rows (P,) and items (P,)."""
    rows, places = np.nonzero(excluded >= 0)
    return rows, excluded[rows, places]


@dataclass(frozen=True)
class LabeledPairs:
    """All pairs of two images, or of a query and an item of a gallery, and whether they are of one class.

    >>> pairs = LabeledPairs(torch.eye(2)[[0, 0, 1]], np.array([7, 7, 8]))
    >>> counts = pairs.count_by_class(np.array([-1.0, 0.5]))
    >>> counts.positives.tolist(), counts.negatives.tolist()
    ([[1, 1], [0, 0]], [[2, 0], [2, 0]])

    Args:
        embeddings: (Q, D) float32 embeddings of unit length, on CPU or on a CUDA device, which then counts the pairs.
        gallery: (G, D) embeddings of a gallery; None stands for the pairs of two of the first embeddings.
        excluded: (Q, M) items of the gallery whose pair with the query doesn't count, such as copies of the query; rows
            of queries that exclude fewer are filled with -1.
    """

    embeddings: Tensor
    labels: npt.NDArray[Any]
    gallery: Tensor | None = None
    gallery_labels: npt.NDArray[Any] | None = None
    excluded: Integers | None = None

    @cached_property
    def counts(self) -> PairCounts:
        """The number of pairs from each of `EDGES` on."""
        size = len(EDGES)
        total, positives = torch.zeros(2, size, dtype=torch.int64, device=self.embeddings.device)
        for similarities, classes, item_classes in self._blocks():
            bins = _find_bins(similarities)
            total += torch.bincount(bins.view(-1), minlength=size)
            positives += torch.bincount(bins[classes[:, None] == item_classes], minlength=size)
        counted = positives.cpu().numpy(), (total - positives).cpu().numpy()
        # bin 0 holds excluded pairs, bin i + 1 those from EDGES[i] on; no pair is at the last edge
        return PairCounts(EDGES, *(np.append(_sum_from_end(values[1:]), 0) for values in counted))

    def refine(self, edges: Integers) -> PairCounts:
        """Return `counts` with a row more for each similarity that occurs between some `EDGES` and the next ones."""
        is_refined = np.zeros(len(EDGES), dtype=np.bool_)
        is_refined[edges + 1] = True
        is_refined_on_device = torch.from_numpy(is_refined).to(self.embeddings.device)
        values, numbers = np.empty(0), np.empty((2, 0), dtype=np.int64)
        for similarities, classes, item_classes in self._blocks():
            rows, columns = is_refined_on_device[_find_bins(similarities.clone())].nonzero(as_tuple=True)
            is_negative = (classes[rows] != item_classes[columns]).long().cpu().numpy()
            found = similarities[rows, columns].double().cpu().numpy()
            # equal similarities are joined block by block, so that many of them take no memory
            values, places = np.unique(np.concatenate([values, found]), return_inverse=True)
            joined = np.zeros((2, len(values)), dtype=np.int64)
            joined[:, places[: numbers.shape[1]]] = numbers
            np.add.at(joined, (is_negative, places[numbers.shape[1] :]), 1)
            numbers = joined
        return _merge(self.counts, values, numbers)

    def count_by_class(self, thresholds: npt.NDArray[np.floating[Any]]) -> ClassCounts:
        """Count the pairs of each class from ascending similarities (T,) on, which are rounded to float32."""
        limits = torch.from_numpy(thresholds.astype(np.float32)).to(self.embeddings.device)
        shape = len(self._class_names), len(limits)
        counted = torch.zeros(2, shape[0] * shape[1], dtype=torch.int64, device=limits.device)
        for similarities, classes, item_classes in self._blocks():
            rows, columns = (similarities >= limits[0]).nonzero(as_tuple=True)
            steps = torch.searchsorted(limits, similarities[rows, columns], right=True) - 1
            first, second = classes[rows], item_classes[columns]
            is_same = first == second
            counted[0] += torch.bincount((first * shape[1] + steps)[is_same], minlength=counted.shape[1])
            for part in (first, second):
                counted[1] += torch.bincount((part * shape[1] + steps)[~is_same], minlength=counted.shape[1])
        positives, negatives = _sum_from_end(counted.cpu().numpy().reshape(2, *shape))
        return ClassCounts(positives, negatives, *self._count_all())

    @cached_property
    def _class_names(self) -> npt.NDArray[Any]:
        """The labels (C,) that occur, sorted."""
        return np.unique(self.labels if self.gallery_labels is None else [*self.labels, *self.gallery_labels])

    def _number(self, labels: npt.NDArray[Any] | None) -> Integers:
        """Return classes (N,) as numbers from 0; None are those of the queries."""
        return np.searchsorted(self._class_names, self.labels if labels is None else labels)

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield all pairs once: similarities (B, M) from -1 to 1, or `EXCLUDED`, and classes (B,) and (M,)."""
        rows, items = self.embeddings, self.embeddings if self.gallery is None else self.gallery
        classes, item_classes = (
            torch.from_numpy(self._number(labels)).to(rows.device) for labels in (self.labels, self.gallery_labels)
        )
        size = max(1, BLOCK // len(items))
        for start in range(0, len(rows), size):
            end = min(start + size, len(rows))
            first = start if self.gallery is None else 0  # a pair of two queries is in the block of its first one
            with without_tf32():
                similarities = (rows[start:end] @ items[first:].T).clamp_(-1, 1)
            if self.gallery is None:
                is_repeated = torch.ones(end - start, end - start, dtype=torch.bool, device=rows.device).tril()
                similarities[:, : end - start].masked_fill_(is_repeated, EXCLUDED)
            elif self.excluded is not None:
                similarities[list_excluded(self.excluded[start:end])] = EXCLUDED
            yield similarities, classes[start:end], item_classes[first:]

    def _count_all(self) -> tuple[Integers, Integers]:
        """Count all pairs of each class -> those with both images in it (C,), and with one of the two in it (C,)."""
        classes, item_classes = self._number(self.labels), self._number(self.gallery_labels)
        sizes, item_sizes = (np.bincount(part, minlength=len(self._class_names)) for part in (classes, item_classes))
        if self.gallery is None:
            return sizes * (sizes - 1) // 2, sizes * (sizes.sum() - sizes)
        positives = sizes * item_sizes
        negatives = sizes * (item_sizes.sum() - item_sizes) + item_sizes * (sizes.sum() - sizes)
        if self.excluded is not None:
            rows, items = list_excluded(self.excluded)
            first, second = classes[rows], item_classes[items]
            np.subtract.at(positives, first[first == second], 1)
            for part in (first, second):
                np.subtract.at(negatives, part[first != second], 1)
        return positives, negatives


def _find_bins(similarities: Tensor) -> Tensor:
    """Turn similarities, in place, into 1 + the index of the last edge that they reach; excluded pairs get 0."""
    return similarities.clamp_(min=-1 - 1 / HALF).mul_(HALF).floor_().add_(HALF + 1).to(torch.int32)


def _sum_from_end(values: Integers) -> Integers:
    """Sum the values from each place to the end. (..., T) -> (..., T)"""
    sums: Integers = np.flip(np.cumsum(np.flip(values, axis=-1), axis=-1), axis=-1)
    return sums


def _merge(counts: PairCounts, values: Floats, numbers: Integers) -> PairCounts:
    """Add rows for similarities (V,), at which there are exactly ``numbers`` (2, V) pairs of one and of two classes."""
    behind = np.searchsorted(EDGES, values, side="right")  # the edge behind each value
    later = np.pad(_sum_from_end(numbers), ((0, 0), (0, 1)))
    # the values from the edge behind on are in its count
    totals = np.stack(counts[1:])[:, behind] + later[:, :-1] - later[:, np.searchsorted(values, EDGES[behind])]
    is_new = ~np.isin(values, EDGES)
    similarities = np.concatenate([counts.similarities, values[is_new]])
    order = np.argsort(similarities)
    positives, negatives = np.concatenate([np.stack(counts[1:]), totals[:, is_new]], axis=1)[:, order]
    return PairCounts(similarities[order], positives, negatives)
