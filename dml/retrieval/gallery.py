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
    """The embeddings that queries are compared with, on CPU or a CUDA device.

    A matrix product can round the dot products of equal embeddings differently. Every copy of an embedding therefore
    gets the distance of the first copy, so that equal embeddings are equally near to each query.

    >>> Gallery(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).distances(torch.tensor([[2.0, 1.0]])).tolist()
    [[-2.0, -1.0]]

    Args:
        rows: (G, D) float32 embeddings.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        originals = _originals(rows.cpu().numpy())
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

        Args:
            queries: (B, D) float32 embeddings on the gallery's device.
            excluded: (B, M) items that each query excludes, such as the query itself, and that get distance infinity;
                rows of queries that exclude fewer are filled with -1.
            out: (B, G) memory for the result; None allocates it.
        """
        distances = queries.new_empty(len(queries), len(self)) if out is None else out
        if queries.is_cuda:
            with precise_products():
                torch.mm(-queries, self.rows.T, out=distances)
        else:  # numpy's matrix product takes two thirds of the time of torch's
            np.matmul((-queries).numpy(), self.rows.numpy().T, out=distances.numpy())
        if len(self._copies):
            distances[:, self._copies] = distances[:, self._originals]
        if excluded is not None:
            rows, columns = (excluded >= 0).nonzero(as_tuple=True)
            distances[rows, excluded[rows, columns]] = torch.inf
        return distances


def _originals(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Find for each row the first row that is equal to it. (G, D) -> (G,)"""
    hashes = np.empty(len(rows), dtype=np.int32)
    for start in range(0, len(rows), HASHED_ROWS):
        block = slice(start, start + HASHED_ROWS)
        hashes[block] = np.bitwise_xor.reduce(_remove_signs_of_zeros(rows[block]).view(np.int32), axis=1)
    _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    originals = np.arange(len(rows))
    first_indices: dict[bytes, int] = {}
    for index in np.flatnonzero(counts[inverse] > 1).tolist():  # few, unless many rows are copies
        digest = blake2b(_remove_signs_of_zeros(rows[index]).tobytes(), digest_size=16).digest()
        originals[index] = first_indices.setdefault(digest, index)
    return originals


def _remove_signs_of_zeros(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a copy of rows in which -0 is 0, so that equal rows have the same bits."""
    return rows + np.float32(0)


@contextmanager
def precise_products() -> Iterator[None]:
    """Compute float32 products with all bits: switch off autocast and TensorFloat-32, which training may have set."""
    with without_tf32(), torch.autocast("cuda", enabled=False):
        yield
