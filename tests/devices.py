"""Tensors that say they are on a device which this machine lacks."""

from typing import Any

import torch
from torch import Tensor


class OnMPS(Tensor):
    """A tensor that claims to be on Apple's MPS and refuses what it refuses there: numpy, and float64.

    Made by ``tensor.as_subclass(OnMPS)``; what is computed from it is on MPS, too.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.device.__get__:
            return torch.device("mps")
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError("can't convert mps:0 device type tensor to numpy")
        if func is Tensor.cpu or (func is Tensor.to and torch.device("cpu") in args):
            with torch._C.DisableTorchFunctionSubclass():
                return args[0].as_subclass(Tensor).clone()
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Tensor) and result.dtype == torch.float64:
            raise TypeError("the MPS framework doesn't support float64")
        return result
