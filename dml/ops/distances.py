import torch
from torch import Tensor


def unit_distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Euclidean distances of L2-normalised rows (B, D) and columns (C, D) -> (B, C).

    One matrix product; a pair closer than the product can resolve (6e-8 in float64, 1.4e-3 in float32)
    counts as coincident: distance 0 with a zero gradient, where the direction would be rounding noise. NaN
    stays NaN.
    """
    squared = 2.0 - 2.0 * rows @ columns.T
    resolution = 16 * torch.finfo(squared.dtype).eps
    apart = ~(squared <= resolution)
    return torch.where(apart, squared, torch.ones_like(squared)).sqrt() * apart
