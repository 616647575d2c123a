"""What functions with a written-out gradient share: the size of their blocks, and no second derivative."""

import torch

ON_GPU = 2**24
"""Numbers of a block on a GPU, 64 MiB in float32: a kernel that computes fewer takes longer to start than to run."""


def block_size(device: torch.device, on_cpu: int) -> int:
    """Return how many numbers of a long computation are computed at a time.

    >>> block_size(torch.device("cpu"), 2**18), block_size(torch.device("cuda"), 2**18)
    (262144, 16777216)

    Args:
        device: device that computes.
        on_cpu: numbers of a block on a CPU, whose caches should hold it.
    """
    return on_cpu if device.type == "cpu" else ON_GPU


def refuse_second_derivative(name: str) -> None:
    """Raise an error in the ``backward`` of a function whose gradient is written out, if a graph of it is asked for.

    torch's ``once_differentiable`` raises only if the outer gradient has a graph. In other cases a second derivative
    would silently lack this part.

    >>> with torch.no_grad():
    ...     refuse_second_derivative("masked_logsumexp")

    Args:
        name: name of the function, for the error.

    Raises:
        RuntimeError: if ``backward`` runs with ``create_graph=True``.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(f"{name} is differentiable once: create_graph=True isn't supported")
