"""What would make the CPU wait for a GPU, counted on the CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "unique_consecutive", "_unique2"}


class Syncs(TorchDispatchMode):
    """Within it counts the operations whose result the CPU has to know: on a GPU each waits for all work before it.

    They are `.item()`, `bool()` and the like, and shapes that depend on values, as those of a boolean index do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        by_mask = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
        if name in WAITS or (by_mask and name == "index"):
            self.seen.append(name)
        return function(*args, **(kwargs or {}))
