from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Gallery:
    """The items to compare queries with, on CPU or a CUDA device.

    A matrix product may round the same dot product differently at another place of its result. So that equal
    embeddings are equally near to every query, copies are given the distance of the first of them.

    Args:
        rows: (G, D) float32.
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
        """(G,): whether the embedding stands in the gallery more than once."""
        repeated = np.zeros(len(self), dtype=np.bool_)
        repeated[self._copies.cpu().numpy()] = True
        repeated[self._originals.cpu().numpy()] = True
        return repeated

    def distances(self, queries: Tensor, excluded: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Negative dot products with all items, so that the nearest is the smallest. (B, D) -> (B, G) float32

        Args:
            queries: on the gallery's device.
            excluded: (B, M) the items that each query excludes, such as itself, which are at distance infinity
                from it; -1 fills the rows of queries that exclude fewer.
            out: (B, G) memory for the result.
        """
        distances = queries.new_empty(len(queries), len(self)) if out is None else out
        if queries.is_cuda:
            with full_float32():
                torch.mm(-queries, self.rows.T, out=distances)
        else:  # numpy's product is half as fast again as torch's
            np.matmul((-queries).numpy(), self.rows.numpy().T, out=distances.numpy())
        if len(self._copies):
            distances[:, self._copies] = distances[:, self._originals]
        if excluded is not None:
            rows, columns = (excluded >= 0).nonzero(as_tuple=True)
            distances[rows, excluded[rows, columns]] = torch.inf
        return distances


def _originals(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """(G, D) -> for each row the first row that equals it (G,)"""
    seen: dict[bytes, int] = {}
    # + 0 makes -0 a 0
    digests = (blake2b(row + np.float32(0), digest_size=16).digest() for row in rows)
    return np.array([seen.setdefault(digest, place) for place, digest in enumerate(digests)], dtype=np.int64)


@contextmanager
def full_float32() -> Iterator[None]:
    """Leaves autocast, and TensorFloat-32's 10 bits of mantissa where training has asked for them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cuda", enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
