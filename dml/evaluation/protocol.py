from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.metrics.binary import recall_at_k
from dml.metrics.clustering import ami, nmi, pair_f1
from dml.ops.errors import InputError
from dml.retrieval.clustering import kmeans
from dml.retrieval.rows import Embeddings, float32_rows
from dml.retrieval.search import nearest_neighbors

Labels = Tensor | npt.NDArray[Any]


class _Items(NamedTuple):
    """Embeddings (N, D) float32 of unit length, labels (N, L) integers, column 0 the finest level."""

    embeddings: npt.NDArray[np.float32]
    labels: npt.NDArray[Any]


def evaluate(
    query: Embeddings,
    query_labels: Labels,
    gallery: Embeddings | None = None,
    gallery_labels: Labels | None = None,
    *,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    clustering: bool = True,
    seed: int = 0,
) -> dict[str, float]:
    """(Q, D), (Q, L) or (Q,), and the same of a gallery -> {metric: fraction}, one set a level.

    Items are ranked by cosine similarity, whatever the length of their embeddings; a zero embedding has
    cosine 0 to all. At level i the positives of a query are the gallery items with its label in column i.
    Without a gallery the queries are their own, each left out of its own by its index.

    - level{i}/recall@{k} for k in `recall_at`: the mean over the queries that have a positive at the level;
      level{i}/queries_without_positives counts the others. With `recall_at` empty nothing is searched.
    - level{i}/nmi, ami, f1, if `clustering`: k-means of the queries' unit embeddings into as many clusters as
      they have labels at the level, started from `seed`. All queries count, the gallery has no part in it.

    Raises InputError for lengths, widths or levels that differ, labels that are not integers, embeddings that
    are not finite, a gallery without its labels or they without it, one item with no other, or a level at
    which no query has a positive: a mean over nothing is no result.
    """
    queries = _items(query, query_labels, "query")
    others = _gallery(gallery, gallery_labels, queries)
    metrics: dict[str, float] = {}
    if recall_at:
        metrics |= _recalls(queries, others, recall_at)
    if clustering:
        metrics |= _clusterings(queries, seed)
    return metrics


def _recalls(queries: _Items, gallery: _Items | None, recall_at: Sequence[int]) -> dict[str, float]:
    if min(recall_at) < 1:
        raise InputError(f"recall_at = {tuple(recall_at)}: every k must be at least 1")
    others = queries if gallery is None else gallery
    searched = None if gallery is None else gallery.embeddings
    _, indices = nearest_neighbors(queries.embeddings, max(recall_at), searched)
    metrics: dict[str, float] = {}
    for level in range(queries.labels.shape[1]):
        ranked = others.labels[indices.numpy(), level]
        relevant = torch.from_numpy(ranked == queries.labels[:, level, None])
        scored = torch.from_numpy(_with_positives(queries, gallery, level))
        metrics[f"level{level}/queries_without_positives"] = float((~scored).sum())
        for k in recall_at:
            metrics[f"level{level}/recall@{k}"] = recall_at_k(relevant[scored], k).double().mean().item()
    return metrics


def _with_positives(queries: _Items, gallery: _Items | None, level: int) -> npt.NDArray[np.bool_]:
    """(Q,): whether the query has a positive at the level; InputError if none has."""
    labels = queries.labels[:, level]
    if gallery is None:
        _, label_of, count = np.unique(labels, return_inverse=True, return_counts=True)
        found = count[label_of] > 1
    else:
        found = np.isin(labels, gallery.labels[:, level])
    if not found.any():
        raise InputError(f"level{level}: none of the {len(labels)} queries has a positive in the gallery")
    return found


def _clusterings(items: _Items, seed: int) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for level in range(items.labels.shape[1]):
        labels = items.labels[:, level]
        assignment = kmeans(items.embeddings, len(np.unique(labels)), seed)
        metrics[f"level{level}/nmi"] = nmi(assignment, labels)
        metrics[f"level{level}/ami"] = ami(assignment, labels)
        metrics[f"level{level}/f1"] = pair_f1(assignment, labels)
    return metrics


def _items(embeddings: Embeddings, labels: Labels, name: str) -> _Items:
    rows = float32_rows(embeddings, name)
    columns = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if columns.ndim == 1:
        columns = columns[:, None]
    if columns.ndim != 2 or not columns.shape[1]:
        raise InputError(f"{name}_labels: shape {tuple(columns.shape)}, expected (N,) or (N, L) with L >= 1")
    if columns.dtype.kind not in "biu":  # floats would let NaN be a class unequal to itself
        raise InputError(f"{name}_labels: {columns.dtype}, expected integers")
    if len(rows) != len(columns):
        raise InputError(f"{name}: {len(rows)} embeddings, {len(columns)} labels")
    return _Items(_unit(rows), columns)


def _gallery(embeddings: Embeddings | None, labels: Labels | None, queries: _Items) -> _Items | None:
    """The gallery's items, None if the queries are their own; InputError unless it suits the queries."""
    if embeddings is None and labels is None:
        if len(queries.labels) < 2:
            raise InputError("query: 1 item and no gallery, at least 2 are needed")
        return None
    if embeddings is None or labels is None:
        given, missing = ("gallery", "gallery_labels") if labels is None else ("gallery_labels", "gallery")
        raise InputError(f"{given} is given without {missing}: a gallery needs both")
    gallery = _items(embeddings, labels, "gallery")
    for what, i in (("embedding dimensions", 0), ("label levels", 1)):
        here, there = queries[i].shape[1], gallery[i].shape[1]
        if here != there:
            raise InputError(f"query and gallery differ in {what}: {here} and {there}")
    return gallery


def _unit(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows scaled to length 1; zero rows stay zero."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    # scaled first: the squares of huge and tiny entries leave float32
    scaled = rows / np.where(largest > 0, largest, 1)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit: npt.NDArray[np.float32] = (scaled / np.maximum(length, 1)).astype(np.float32, copy=False)
    return unit  # only a zero row is shorter than 1 when scaled
