"""Checked embeddings and labels: the input of every evaluation."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.evaluation.unit_embeddings import UnitEmbeddings
from dml.ops.errors import InputError
from dml.ops.poincare import ranking_vectors
from dml.retrieval.rows import Embeddings

Labels = Tensor | npt.NDArray[Any]


class Items(NamedTuple):
    """Embeddings (N, D) float32 of unit length, and labels (N, L) integers, column 0 the finest level.

    The embeddings are those of `UnitEmbeddings`. With a curvature above 0, they are points of the Poincare ball of
    that curvature, and are ranked by Poincare distance.
    """

    embeddings: Tensor
    labels: npt.NDArray[Any]
    curvature: float = 0.0

    def query_vectors(self, rows: slice) -> Tensor:
        """Return vectors of some items as queries, whose largest inner product is with the nearest gallery item."""
        points = self.embeddings[rows]
        return ranking_vectors(points, self.curvature)[0] if self.curvature else points

    def gallery_vectors(self) -> Tensor:
        """Return the vectors of all items as a gallery, for the inner products with `query_vectors`."""
        return ranking_vectors(self.embeddings, self.curvature)[1] if self.curvature else self.embeddings

    def take(self, rows: npt.NDArray[np.int64], level: int | None = None) -> "Items":
        """Return the items of some rows, with the labels of one level or of all levels."""
        if level is None and len(rows) == len(self.labels) and (rows == np.arange(len(rows))).all():
            return self  # without a copy of the embeddings
        labels = self.labels[rows] if level is None else self.labels[rows, level, None]
        return Items(self.embeddings[torch.from_numpy(rows).to(self.embeddings.device)], labels, self.curvature)


def check_items(embeddings: Embeddings, labels: Labels, name: str, curvature: float = 0.0) -> Items:
    """Check embeddings and labels, and scale the embeddings to unit length.

    Args:
        embeddings: (N, D) embeddings of any real type.
        labels: (N,) or (N, L) integers.
        name: name of the embeddings in error messages.
        curvature: curvature of the Poincare ball whose points the embeddings are; 0 for other embeddings.

    Raises:
        InputError: if the lengths differ, the labels are not integers, or embeddings are not finite.
    """
    unit, columns = UnitEmbeddings.normalize(embeddings, name, curvature), check_labels(labels, name)
    if len(unit) != len(columns):
        raise InputError(f"{name}: {len(unit)} embeddings, {len(columns)} labels")
    return Items(unit.rows, columns, unit.curvature)


def check_labels(labels: Labels, name: str) -> npt.NDArray[Any]:
    """Check labels. (N,) or (N, L) -> (N, L)

    Args:
        labels: (N,) or (N, L) integers, column 0 the finest level.
        name: name of the embeddings that the labels belong to, for error messages.

    Raises:
        InputError: if the labels have another shape, or are not integers.
    """
    columns = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if columns.ndim == 1:
        columns = columns[:, None]
    if columns.ndim != 2 or not columns.shape[1]:
        raise InputError(f"{name}_labels: shape {tuple(columns.shape)}, expected (N,) or (N, L) with L >= 1")
    if columns.dtype.kind not in "biu":  # floats would let NaN be a class unequal to itself
        raise InputError(f"{name}_labels: {columns.dtype}, expected integers")
    return columns


def check_query_and_gallery(
    query: Embeddings,
    query_labels: Labels,
    gallery: Embeddings | None,
    gallery_labels: Labels | None,
    curvature: float = 0.0,
) -> tuple[Items, Items | None]:
    """Check queries and a gallery; without a gallery the queries are their own.

    Raises:
        InputError: if `check_items` raises one, widths, levels or devices differ, or only one of the gallery and the
            gallery's labels is there.
    """
    queries = check_items(query, query_labels, "query", curvature)
    if gallery is None and gallery_labels is None:
        return queries, None
    if gallery is None or gallery_labels is None:
        present, missing = ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        raise InputError(f"{present} is given without {missing}: a gallery needs both")
    items = check_items(gallery, gallery_labels, "gallery", curvature)
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
