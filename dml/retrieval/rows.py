"""Embeddings as every ranking takes them: float32, checked and scaled to unit length once, on its device."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dml.runtime.errors import InputError

Embeddings = Tensor | npt.NDArray[Any]


def float32_rows(embeddings: Embeddings, name: str) -> Tensor:
    """Check embeddings and convert them to contiguous float32, with a copy only if needed. (N, D) -> (N, D)

    Embeddings on a CUDA device stay there; those on any other device, such as Apple's MPS, are moved to the CPU,
    because what CUDA does not compute, numpy and FAISS do.

    >>> float32_rows(np.array([[1, 2]]), "embeddings")
    tensor([[1., 2.]])
    """
    if not isinstance(embeddings, Tensor):
        with np.errstate(over="ignore"):  # a value that overflows becomes infinite, which is reported below
            embeddings = torch.from_numpy(np.require(embeddings, np.float32, ["C", "W"]))
    if not embeddings.is_cuda:
        embeddings = embeddings.cpu()
    rows = embeddings.detach().to(torch.float32)
    if rows.ndim != 2 or not rows.numel():
        raise InputError(f"{name}: embeddings of shape {tuple(rows.shape)}, expected (N, D) with N, D >= 1")
    # Both are NaN if any entry of the row is. isfinite() of all entries would take several times the rows' memory.
    smallest, largest = rows.aminmax(dim=1)
    num_invalid = int((~(smallest.isfinite() & largest.isfinite())).sum())
    if num_invalid:
        raise InputError(f"{name}: {num_invalid} of {len(rows)} embeddings hold NaN or values infinite in float32")
    return rows.contiguous()


def stack_rows(column: pa.ChunkedArray) -> npt.NDArray[np.float32]:
    """Return a column of lists of numbers as (N, D); an `InputError` names a row that isn't D finite numbers."""
    sizes = pc.list_value_length(column).fill_null(0).to_numpy()
    width = sizes.max(initial=1)
    is_wrong: npt.NDArray[np.bool_] = sizes != width
    rows = np.empty((0, width), dtype=np.float32)
    if not is_wrong.any():
        rows = pc.list_flatten(column).cast(pa.float32()).fill_null(np.nan).to_numpy().reshape(-1, width)
        is_wrong = ~np.isfinite(rows).all(axis=1)
    if is_wrong.any():
        raise InputError(f"row {is_wrong.argmax()}, from 0 on, doesn't hold {width} finite numbers")
    return rows


def unit_rows(embeddings: Embeddings, name: str) -> Tensor:
    """Check embeddings and L2-normalize them to float32; rows of zeros stay zero. (N, D) -> (N, D)

    >>> unit_rows(np.array([[3.0, 4.0], [3e-30, 4e-30], [0.0, 0.0]]), "embeddings")
    tensor([[0.6000, 0.8000],
            [0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    unit = float32_rows(embeddings, name).clone()
    # Rows are divided by their largest entry first, because squares of huge and tiny entries aren't in float32.
    largest = unit.amax(dim=1, keepdim=True).maximum(-unit.amin(dim=1, keepdim=True))
    unit /= torch.where(largest > 0, largest, 1)
    # only rows of zeros are shorter than 1 now
    unit /= torch.linalg.vector_norm(unit, dim=1, keepdim=True).clamp(min=1)
    return unit


def ranking_device(device: torch.device) -> torch.device:
    """Return the device that embeddings are ranked on: a CUDA device itself, else the CPU, as MPS lacks float64."""
    return device if device.type == "cuda" else torch.device("cpu")


@dataclass(frozen=True)
class UnitEmbeddings:
    """Embeddings (N, D) float32 of unit length on their `ranking_device`, checked and scaled once; 0 stays 0."""

    rows: Tensor

    @classmethod
    def normalize(cls, embeddings: "Embeddings | UnitEmbeddings", name: str = "embeddings") -> "UnitEmbeddings":
        """Check and scale embeddings by `unit_rows`; what is normalized already is returned as it is."""
        return embeddings if isinstance(embeddings, UnitEmbeddings) else cls(unit_rows(embeddings, name))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: npt.NDArray[np.int64]) -> "UnitEmbeddings":
        """Return the embeddings of some rows."""
        return UnitEmbeddings(self.rows[torch.from_numpy(indices).to(self.rows.device)])
