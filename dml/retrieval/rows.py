from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.errors import InputError

Embeddings = Tensor | npt.NDArray[Any]


def float32_rows(embeddings: Embeddings, name: str) -> npt.NDArray[np.float32]:
    """(N, D) of any real type, on any device -> (N, D) float32 as FAISS reads it, copied if need be.

    Raises InputError, which names them `name`, unless N, D >= 1 and every entry is finite in float32.
    """
    if isinstance(embeddings, Tensor):
        rows = embeddings.detach().to("cpu", torch.float32).numpy()
    else:
        with np.errstate(over="ignore"):  # what overflows becomes infinite and is reported below
            rows = np.asarray(embeddings).astype(np.float32, copy=False)
    if rows.ndim != 2 or not rows.size:
        raise InputError(f"{name}: embeddings of shape {tuple(rows.shape)}, expected (N, D) with N, D >= 1")
    broken = int((~np.isfinite(rows)).any(axis=1).sum())
    if broken:
        raise InputError(f"{name}: {broken} of {len(rows)} embeddings hold NaN or values infinite in float32")
    return np.ascontiguousarray(rows)
