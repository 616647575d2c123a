"""The bytes of all tensors that are alive at a time."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations in the ``with`` body return, while they are alive.

    Attributes:
        peak: the most bytes at any time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in self._sizes:
                storage = tensor.untyped_storage()
                self._sizes[key] = storage.nbytes()
                self._now += storage.nbytes()
                self.peak = max(self.peak, self._now)
                weakref.finalize(storage, self._forget, key)
        return result

    def _forget(self, key: int) -> None:
        self._now -= self._sizes.pop(key)
