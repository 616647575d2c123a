"""The items that queries are compared with, their distances, and the nearest of them; ties by index."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.precision import without_tf32

HASHED_ROWS = 4096
"""The number of embeddings that are hashed together."""


class Gallery:
    """The embeddings (G, D) float32 that queries are compared with, on CPU or a CUDA device.

    A matrix product can round the dot products of equal embeddings differently. Every copy of an embedding therefore
    gets the distance of the first copy, so that equal embeddings are equally near to each query.

    >>> Gallery(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).distances(torch.tensor([[2.0, 1.0]])).tolist()
    [[-2.0, -1.0]]
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        originals = _originals(rows)
        copies = np.flatnonzero(originals != np.arange(len(rows)))
        self._copies = torch.from_numpy(copies).to(rows.device)
        self._originals = torch.from_numpy(originals[copies]).to(rows.device)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def repeated(self) -> npt.NDArray[np.bool_]:
        """Tell which embeddings occur more than once in the gallery -> (G,)."""
        repeated = np.zeros(len(self), dtype=np.bool_)
        repeated[self._copies.cpu().numpy()] = True
        repeated[self._originals.cpu().numpy()] = True
        return repeated

    def distances(self, queries: Tensor, excluded: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Compute negative dot products, so that the nearest item has the smallest distance. (B, D) -> (B, G) float32

        Items ``excluded`` (B, M), padded with -1, get distance infinity. ``out`` (B, G) is memory for the result.
        """
        distances = queries.new_empty(len(queries), len(self)) if out is None else out
        if queries.is_cuda:
            with precise_products():
                torch.mm(-queries, self.rows.T, out=distances)
        else:  # numpy's matrix product takes two thirds of the time of torch's
            np.matmul((-queries).numpy(), self.rows.numpy().T, out=distances.numpy())
        if len(self._copies):
            distances[:, self._copies] = distances[:, self._originals]
        if excluded is not None:  # without finding out which are -1, for which a GPU would have to be waited for
            raised = torch.where(excluded >= 0, torch.inf, -torch.inf).to(distances)
            distances.scatter_reduce_(1, excluded.clamp(min=0), raised, "amax")
        return distances


def _originals(rows: Tensor) -> npt.NDArray[np.int64]:
    """Find for each row the first row that is equal to it. (G, D) -> (G,)"""
    factors = np.random.default_rng(0).integers(2**31, size=rows.shape[1])  # the sums of integers below are exact
    on_device = torch.from_numpy(factors).to(rows.device)
    hashes = torch.cat([(get_bits(part) * on_device).sum(dim=1) for part in torch.split(rows, HASHED_ROWS)])
    _, inverse, counts = torch.unique(hashes, return_inverse=True, return_counts=True)
    suspects = (counts[inverse] > 1).nonzero().flatten()  # few, unless many rows are copies
    originals = np.arange(len(rows))
    first_indices: dict[bytes, int] = {}
    for index, bits in zip(suspects.tolist(), get_bits(rows[suspects]).cpu().numpy(), strict=True):
        digest = blake2b(bits.tobytes(), digest_size=16).digest()
        originals[index] = first_indices.setdefault(digest, index)
    return originals


def get_bits(rows: Tensor) -> Tensor:
    """Return the bits of float32 numbers as integers; -0 has those of 0, so that equal rows have the same bits."""
    return (rows + 0).view(torch.int32)


@contextmanager
def precise_products() -> Iterator[None]:
    """Compute float32 products with all bits: switch off autocast and TensorFloat-32, which training may have set."""
    with without_tf32(), torch.autocast("cuda", enabled=False):
        yield


Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

SORT_FACTOR = 16
"""Memory that sorting distances takes, as a multiple of the memory of the distances."""


def k_nearest(distances: Tensor, k: int, rows_at_once: int) -> tuple[Tensor, Tensor]:
    """Find the k smallest distances of each row, on any device; ties are sorted by index. (B, G) -> (B, k), (B, k)

    torch's top-k chooses arbitrarily among equal distances. It is therefore run for k + 1 items. Only rows whose k-th
    and next distances are equal can have wrong items; these are sorted completely, ``rows_at_once`` at a time, which
    takes several times the memory of their distances.

    >>> values, items = k_nearest(torch.tensor([[0.5, 0.1, 0.5, 0.3]]), k=3, rows_at_once=1)
    >>> items.tolist()
    [[1, 3, 0]]
    """
    values, items = distances.topk(min(k + 1, distances.shape[1]), dim=1, largest=False)
    is_unsure = (values[:, k - 1 : k] == values[:, k:]).any(dim=1)
    items, by_item = items[:, :k].sort(dim=1)
    values, by_value = sort_with_ties(values[:, :k].gather(1, by_item))
    items = items.gather(1, by_value)
    for rows in torch.split(is_unsure.nonzero().flatten(), rows_at_once):
        ascending, order = sort_with_ties(distances[rows])
        values[rows], items[rows] = ascending[:, :k], order[:, :k]
    return values, items


def sort_with_ties(distances: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row, equal distances by index, on any device. (B, G) -> (B, G), (B, G)

    -0 and 0 are equal; a GPU would sort them by their bits, which differ.

    >>> values, items = sort_with_ties(torch.tensor([[0.0, 0.5, -0.0]]))
    >>> items.tolist()
    [[0, 2, 1]]
    """
    values, items = (distances + 0).sort(dim=1, stable=True)  # -0 + 0 is 0
    return values, items


def nearest(distances: Floats, k: int) -> Integers:
    """Return the indices of the k smallest distances, smallest first; ties are sorted by index. (N,) -> (k,)

    >>> nearest(np.array([0.5, 0.1, 0.5, 0.3], dtype=np.float32), k=3).tolist()
    [1, 3, 0]
    """
    if not k:
        return np.empty(0, dtype=np.int64)
    limit = np.partition(distances, k - 1)[k - 1]
    within = np.flatnonzero(distances <= limit)
    return within[np.argsort(distances[within], kind="stable")[:k]]
