"""Rejection of queries whose class isn't in the gallery, by the similarity of their nearest neighbour."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dml.metrics.pair_counts import BLOCK, Integers, LabelledPairs
from dml.ops.precision import without_tf32

Metrics = dict[str, float]
Booleans = npt.NDArray[np.bool_]


class NearestItems(NamedTuple):
    """The nearest neighbours of some queries in a gallery of half of the classes.

    Args:
        scores: (Q,) similarity of the nearest item of each query.
        is_known: (Q,) whether the gallery has an item of the query's class.
        is_right: (Q,) whether the nearest item is of the query's class.
    """

    scores: npt.NDArray[np.float32]
    is_known: Booleans
    is_right: Booleans


def reject_unknown(nearest: NearestItems, threshold: float | None) -> Metrics:
    """Compute how well the nearest neighbour's similarity tells queries of known classes from others.

    Args:
        nearest: nearest neighbours of the queries.
        threshold: similarity from which on a query is accepted; None for the first of the metrics alone.

    Returns:
        ``unknown_auroc``: the area under the ROC curve of the similarity, 0.5 by chance. ``known_accepted`` and
        ``unknown_accepted``: the shares of queries whose nearest neighbour has at least the threshold.
        ``known_identified``: the share of known queries that are accepted and whose nearest neighbour is of their
        class (detection and identification). No metric if all queries are known, or none is.
    """
    scores, is_known, is_right = nearest
    if is_known.all() or not is_known.any():
        return {}
    from sklearn.metrics import roc_auc_score  # late: it takes half a second, which a start waits for

    metrics = {"unknown_auroc": float(roc_auc_score(is_known, scores))}
    if threshold is not None:
        is_accepted = scores >= np.float32(threshold)
        metrics |= {
            "known_accepted": float(is_accepted[is_known].mean()),
            "known_identified": float((is_accepted & is_right)[is_known].mean()),
            "unknown_accepted": float(is_accepted[~is_known].mean()),
        }
    return metrics


def find_nearest_known(pairs: LabelledPairs, seed: int) -> NearestItems:
    """Find the nearest neighbour of each query among the images of half of the classes, drawn at random.

    A query never finds itself. Queries of a known class of which the gallery has no other image are left out, because
    no neighbour of theirs could be right.

    Args:
        pairs: the images, and perhaps the gallery that they search.
        seed: seed of the draw of the classes.
    """
    labels = pairs.labels
    items, item_labels = (
        (pairs.embeddings, labels) if pairs.gallery is None else (pairs.gallery, np.asarray(pairs.gallery_labels))
    )
    classes = np.unique(np.concatenate([labels, item_labels]))
    known = np.random.default_rng(seed).permutation(classes)[: len(classes) // 2]
    gallery = np.flatnonzero(np.isin(item_labels, known))
    excluded = np.arange(len(labels))[:, None] if pairs.gallery is None else pairs.excluded
    is_known, has_positive = np.isin(labels, known), _count_positives(labels, item_labels, excluded) > 0
    queries = np.flatnonzero(~is_known | has_positive)
    if not len(gallery):
        queries = queries[:0]
    scores, nearest = _search(pairs, items, queries, gallery, excluded)
    has_neighbor = np.isfinite(scores)  # an unknown query may exclude the whole gallery
    queries, nearest = queries[has_neighbor], nearest[has_neighbor]
    return NearestItems(scores[has_neighbor], is_known[queries], item_labels[gallery][nearest] == labels[queries])


def _count_positives(
    labels: npt.NDArray[np.int64], item_labels: npt.NDArray[np.int64], excluded: Integers | None
) -> Integers:
    """Count the items of each query's class that the query doesn't exclude. (Q,), (G,), (Q, M) -> (Q,)"""
    sizes = dict(zip(*np.unique(item_labels, return_counts=True), strict=True))
    counts = np.array([sizes.get(label, 0) for label in labels], dtype=np.int64)
    if excluded is None:
        return counts
    is_positive = (excluded >= 0) & (item_labels[excluded] == labels[:, None])
    missing: Integers = counts - is_positive.sum(axis=1)
    return missing


def _search(
    pairs: LabelledPairs, items: torch.Tensor, queries: Integers, gallery: Integers, excluded: Integers | None
) -> tuple[npt.NDArray[np.float32], Integers]:
    """Search the rows of some queries in a part of the items -> scores (Q,), and places (Q,) in ``gallery``."""
    device = items.device
    rows, columns = items[torch.from_numpy(gallery).to(device)], np.full(len(items) + 1, -1)
    columns[gallery] = np.arange(len(gallery))
    scores, nearest = np.empty(len(queries), np.float32), np.empty(len(queries), np.int64)
    size = max(1, BLOCK // max(1, len(gallery)))
    for start in range(0, len(queries), size):
        part = queries[start : start + size]
        with without_tf32():
            similarities = pairs.embeddings[torch.from_numpy(part).to(device)] @ rows.T
        if excluded is not None:
            places = columns[excluded[part]]  # -1 where nothing is excluded, as the last of the columns is
            query, number = np.nonzero(places >= 0)
            similarities[query, places[query, number]] = -torch.inf
        best = similarities.max(dim=1)
        scores[start : start + size], nearest[start : start + size] = best.values.cpu(), best.indices.cpu()
    return scores, nearest
