"""What written-out gradients have in common."""

import torch


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
