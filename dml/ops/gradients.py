"""Blocks of long computations, and what functions with a written-out gradient refuse: a second derivative."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dml.ops.precision import without_tf32

BLOCK = 2**18
"""Numbers of a block of rows on a CPU, 1 MiB in float32."""

ON_GPU = 2**24
"""Numbers of a block on a GPU, 64 MiB in float32: a kernel that computes fewer takes longer to start than to run."""


def block_size(device: torch.device, on_cpu: int) -> int:
    """Return how many numbers of a long computation are computed at a time, on a CPU so many that its caches hold them.

    >>> block_size(torch.device("cpu"), 2**18), block_size(torch.device("cuda"), 2**18)
    (262144, 16777216)
    """
    return on_cpu if device.type == "cpu" else ON_GPU


def row_blocks(rows: range, width: int, device: torch.device) -> list[slice]:
    """Divide rows into blocks for a computation that makes ``width`` numbers of each row."""
    size = max(1, block_size(device, on_cpu=BLOCK) // max(1, width))
    starts = range(rows.start, max(rows.stop, rows.start + 1), size)
    return [slice(start, min(start + size, rows.stop)) for start in starts]


def in_blocks(
    compute: Callable[[slice], tuple[Tensor, ...]], rows: range, width: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Compute results of some rows a block at a time, and again for the gradient, so that memory holds one block.

    >>> in_blocks(lambda block: (torch.arange(9)[block],), range(2, 5), 2**18, torch.device("cpu"))
    (tensor([2, 3, 4]),)

    Args:
        width: how many numbers the longest intermediate result has for each row.
    """
    blocks = row_blocks(rows, width, device)
    if len(blocks) == 1:
        return compute(*blocks)
    repeat = partial(  # the gradient has to compute the same numbers, so without TF32
        checkpoint, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: (nullcontext(), without_tf32())
    )
    parts: list[tuple[Tensor, ...]] = [repeat(compute, block) for block in blocks]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def refuse_second_derivative(name: str) -> None:
    """Raise a RuntimeError if a graph of a ``backward`` is asked for, whose gradient is written out.

    torch's ``once_differentiable`` raises only if the outer gradient has a graph. In other cases a second derivative
    would silently lack this part.

    >>> with torch.no_grad():
    ...     refuse_second_derivative("masked_logsumexp")
    """
    if torch.is_grad_enabled():
        raise RuntimeError(f"{name} is differentiable once: create_graph=True isn't supported")
