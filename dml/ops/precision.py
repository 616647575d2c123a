from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def full_precision(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes a loss's ``forward(self, embeddings, ...)`` compute in float32 (or float64, if given that).

    Under autocast the similarity product would run in half precision: its errors of 1e-2 are as large as the
    margins that the losses act on. Half-precision embeddings are therefore widened and autocast is left, and so is
    TF32, whatever the network's products are computed in.
    """

    @wraps(forward)
    def wide(self: Any, embeddings: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast(embeddings.device.type, enabled=False), _all_bits():
            if embeddings.dtype in (torch.float16, torch.bfloat16):
                embeddings = embeddings.float()
            return forward(self, embeddings, *args, **kwargs)

    return wide


@contextmanager
def _all_bits() -> Iterator[None]:
    """Computes float32 products in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
