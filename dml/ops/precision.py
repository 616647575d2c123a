from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from dml.runtime.processes import SharedSetting


def full_precision(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate a loss's ``forward(self, embeddings, ...)`` to compute in float32, or in float64 for float64 embeddings.

    Under autocast the product of the embeddings would have half precision, with errors of 1e-2, which are as large as
    the differences that losses depend on. Half-precision embeddings are therefore converted to float32, and autocast
    and TF32 are switched off in the loss. Products of the backward pass are as ``matmul_precision`` says.

    >>> import torch.nn as nn
    >>> class MeanLoss(nn.Module):
    ...     @full_precision
    ...     def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
    ...         return embeddings.mean()
    >>> MeanLoss()(torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor([0, 1])).dtype
    torch.float32
    """

    @wraps(forward)
    def wide(self: Any, embeddings: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast(embeddings.device.type, enabled=False), without_tf32():
            if embeddings.dtype in (torch.float16, torch.bfloat16):
                embeddings = embeddings.float()
            return forward(self, embeddings, *args, **kwargs)

    return wide


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Compute float32 products and convolutions on a GPU with all bits in the ``with`` body, as tests do."""
    if device.type != "cuda":
        yield
        return
    with _convolutions.hold(False), without_tf32():
        yield


def without_tf32() -> AbstractContextManager[None]:
    """Compute float32 matrix products with all bits in the ``with`` body, instead of TensorFloat-32's 10 bits."""
    return _products.hold("highest")


_allow_tf32_convolutions: Callable[[bool], None] = partial(setattr, torch.backends.cudnn, "allow_tf32")
_convolutions = SharedSetting(lambda: bool(torch.backends.cudnn.allow_tf32), _allow_tf32_convolutions, itemgetter(-1))
_products = SharedSetting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, itemgetter(-1))
