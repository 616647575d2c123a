from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from operator import itemgetter
from threading import Lock
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class SharedSetting(Generic[T]):
    """A setting of the process that threads change while they need another value, and its former value afterwards.

    A thread that restored the value which it had read could restore that of another thread, and leave it for good.
    ``choose`` takes the former value and those that threads need now, and returns the one that suits all.
    """

    def __init__(self, read: Callable[[], T], write: Callable[[T], None], choose: Callable[[Sequence[T]], T]) -> None:
        self.read, self.write, self.choose = read, write, choose
        self._lock = Lock()
        self._values: list[T] = []

    @contextmanager
    def hold(self, value: T) -> Iterator[None]:
        """Let the setting suit a value in the body of the ``with`` statement."""
        with self._lock:
            if len(self._values) < 2:
                self._values = [self.read()]
            self._values.append(value)
            self.write(self.choose(self._values))
        try:
            yield
        finally:
            with self._lock:
                del self._values[self._values.index(value, 1)]
                self.write(self.choose(self._values))


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
