"""Hashes of the values of tensors."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor


def add_tensors(digest: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Add tensors to a hash: the name, the type, the shape and the bytes of each.

    Args:
        digest: hash of hashlib, changed in place.
        tensors: tensors with their names, on any device.
    """
    for name, tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy())


def hash_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a short hash of tensors with their names; their order counts.

    >>> hash_tensors([("weight", torch.zeros(2))]) == hash_tensors([("weight", torch.ones(2))])
    False
    """
    digest = sha256()
    add_tensors(digest, tensors)
    return digest.hexdigest()[:16]
