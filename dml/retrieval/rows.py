from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.errors import InputError

Embeddings = Tensor | npt.NDArray[Any]


def float32_rows(embeddings: Embeddings, name: str) -> Tensor:
    """(N, D) of any real type -> (N, D) float32, contiguous, on its device, copied if need be.

    Raises InputError, which names them `name`, unless N, D >= 1 and every entry is finite in float32.
    """
    if not isinstance(embeddings, Tensor):
        with np.errstate(over="ignore"):  # what overflows becomes infinite and is reported below
            embeddings = torch.from_numpy(np.require(embeddings, np.float32, ["C", "W"]))
    rows = embeddings.detach().to(torch.float32)
    if rows.ndim != 2 or not rows.numel():
        raise InputError(f"{name}: embeddings of shape {tuple(rows.shape)}, expected (N, D) with N, D >= 1")
    least, most = rows.aminmax(dim=1)  # NaN if any entry is; isfinite() would take several times the rows' memory
    broken = int((~(least.isfinite() & most.isfinite())).sum())
    if broken:
        raise InputError(f"{name}: {broken} of {len(rows)} embeddings hold NaN or values infinite in float32")
    return rows.contiguous()


def is_on_cuda(rows: Tensor) -> bool:
    """Whether rows are searched and clustered where they are, by torch, and not on CPU, by FAISS."""
    return rows.is_cuda


def unit_rows(embeddings: Embeddings, name: str) -> Tensor:
    """`float32_rows`, each scaled to length 1; zero rows stay zero."""
    unit = float32_rows(embeddings, name).clone()
    # scaled by the largest entry first: the squares of huge and tiny entries leave float32
    largest = unit.amax(dim=1, keepdim=True).maximum(-unit.amin(dim=1, keepdim=True))
    unit /= torch.where(largest > 0, largest, 1)
    unit /= torch.linalg.vector_norm(unit, dim=1, keepdim=True).clamp(min=1)  # only a zero row is shorter now
    return unit
