from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.errors import InputError
from dml.retrieval.rows import Embeddings, unit_rows

Labels = Tensor | npt.NDArray[Any]


def ranking_device(device: torch.device) -> torch.device:
    """The device that embeddings on a device are ranked on: a CUDA device itself, for any other the CPU.

    Metrics are float64, which Apple's MPS lacks; and what CUDA does not compute, numpy and FAISS do.
    """
    return device if device.type == "cuda" else torch.device("cpu")


class Items(NamedTuple):
    """Embeddings (N, D) float32 of unit length, labels (N, L) integers, column 0 the finest level.

    The embeddings are on their `ranking_device`.
    """

    embeddings: Tensor
    labels: npt.NDArray[Any]


def checked_items(
    query: Embeddings, query_labels: Labels, gallery: Embeddings | None, gallery_labels: Labels | None
) -> tuple[Items, Items | None]:
    """Queries and gallery, or None if the queries are their own gallery.

    Raises InputError for lengths, widths, levels or devices that differ, labels that are not integers,
    embeddings that are not finite, a gallery without its labels or they without it, or one item with no other.
    """
    queries = _items(query, query_labels, "query")
    if gallery is None and gallery_labels is None:
        if len(queries.labels) < 2:
            raise InputError("query: 1 item and no gallery, at least 2 are needed")
        return queries, None
    if gallery is None or gallery_labels is None:
        given, missing = ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        raise InputError(f"{given} is given without {missing}: a gallery needs both")
    others = _items(gallery, gallery_labels, "gallery")
    for what, here, there in (
        ("embedding dimensions", queries.embeddings.shape[1], others.embeddings.shape[1]),
        ("label levels", queries.labels.shape[1], others.labels.shape[1]),
        ("device", queries.embeddings.device, others.embeddings.device),
    ):
        if here != there:
            raise InputError(f"query and gallery differ in {what}: {here} and {there}")
    return queries, others


def _items(embeddings: Embeddings, labels: Labels, name: str) -> Items:
    if isinstance(embeddings, Tensor):
        embeddings = embeddings.detach().to(ranking_device(embeddings.device))
    unit = unit_rows(embeddings, name)
    columns = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if columns.ndim == 1:
        columns = columns[:, None]
    if columns.ndim != 2 or not columns.shape[1]:
        raise InputError(f"{name}_labels: shape {tuple(columns.shape)}, expected (N,) or (N, L) with L >= 1")
    if columns.dtype.kind not in "biu":  # floats would let NaN be a class unequal to itself
        raise InputError(f"{name}_labels: {columns.dtype}, expected integers")
    if len(unit) != len(columns):
        raise InputError(f"{name}: {len(unit)} embeddings, {len(columns)} labels")
    return Items(unit, columns)
