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
