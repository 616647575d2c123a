from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.errors import InputError
from dml.retrieval.rows import Embeddings, float32_rows

GPU_LIMIT = 2048  # the longest list that a GPU index of FAISS returns
GPU_SCRATCH = 256 * 2**20  # bytes; FAISS would otherwise set aside more than a gigabyte beside the network


def nearest_neighbors(
    query: Embeddings, k: int, gallery: Embeddings | None = None, *, batch: int = 16_384
) -> tuple[Tensor, Tensor]:
    """(Q, D), (G, D) -> the k largest dot products of each query (Q, k') float32, and whose (Q, k') int64.

    Exact search in float32, best first, k' = min(k, G); for cosines give rows of unit length. Without a
    gallery the queries are their own, each query is left out of its own list by its index, and Q - 1 stands
    for G.

    Equal scores stand in the order of the gallery within the list. Which of several equals at its end make
    the cut is FAISS's choice, and float32 decides what is equal: scores closer than its rounding may swap.
    `batch` queries are searched at a time: beside inputs and result the memory is O(batch k).

    Raises InputError for embeddings that are not finite, widths that differ, k < 1, or a lone item.
    """
    queries = float32_rows(query, "query")
    own = gallery is None
    others = queries if gallery is None else float32_rows(gallery, "gallery")
    if queries.shape[1] != others.shape[1]:
        raise InputError(f"query embeddings have {queries.shape[1]} dimensions, gallery's {others.shape[1]}")
    if k < 1:
        raise InputError(f"k = {k}: at least 1 neighbour must be asked for")
    if len(others) - own < 1:
        raise InputError("query: 1 embedding and no gallery, at least 2 are needed")
    length = min(k, len(others) - own)
    index = _index(others, length + own)
    scores = np.empty((len(queries), length), dtype=np.float32)
    indices = np.empty((len(queries), length), dtype=np.int64)
    for start in range(0, len(queries), batch):
        rows = slice(start, start + batch)
        found = _sorted(*index.search(queries[rows], length + own))
        scores[rows], indices[rows] = _without_self(*found, first=start) if own else found
    return torch.from_numpy(scores), torch.from_numpy(indices)


def _index(gallery: npt.NDArray[np.float32], length: int) -> Any:
    """An exact inner-product index, on this process's GPU if FAISS has one and lists may have this length."""
    index: Any = faiss.IndexFlatIP(gallery.shape[1])
    if faiss.get_num_gpus() > 0 and length <= GPU_LIMIT:
        resources = faiss.StandardGpuResources()
        resources.setTempMemory(GPU_SCRATCH)
        device = torch.cuda.current_device() if torch.cuda.is_available() else 0
        index = faiss.index_cpu_to_gpu(resources, device, index)
    index.add(gallery)
    return index


def _sorted(
    scores: npt.NDArray[np.float32], indices: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Each row by falling score, equal scores by rising index."""
    if (indices < 0).any():  # FAISS's mark for an empty place: no score there was a number
        raise InputError("the dot products overflow float32: scale the embeddings down, or to unit length")
    order = np.lexsort((indices, -scores))
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(indices, order, axis=1)


def _without_self(
    scores: npt.NDArray[np.float32], indices: npt.NDArray[np.int64], first: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """(Q, k + 1) -> (Q, k): row i loses the index first + i, or its last place where that is not in the list.

    A query with k + 1 others as near as itself (duplicates) is not in its list, which the k best others lead.
    """
    dropped = indices == np.arange(first, first + len(indices))[:, None]
    dropped[~dropped.any(axis=1), -1] = True
    shape = (len(indices), indices.shape[1] - 1)
    return scores[~dropped].reshape(shape), indices[~dropped].reshape(shape)
