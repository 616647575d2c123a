import torch
from torch import Tensor


def unit_distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Compute Euclidean distances of L2-normalized rows (B, D) and columns (C, D) by one matrix product -> (B, C).

    Distances below the resolution of the product (6e-8 in float64, 1.4e-3 in float32) become 0 with a zero gradient,
    because the direction of the gradient would be rounding errors. NaN stays NaN.

    >>> rows = torch.eye(2, dtype=torch.float64)
    >>> unit_distances(rows, rows[:1]).round(decimals=3).tolist()
    [[0.0], [1.414]]
    """
    squared = 2.0 - 2.0 * rows @ columns.T
    resolution = 16 * torch.finfo(squared.dtype).eps
    apart = ~(squared <= resolution)
    return torch.where(apart, squared, torch.ones_like(squared)).sqrt() * apart
