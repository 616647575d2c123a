import torch.nn.functional as F
from torch import Tensor, nn

from dml.ops.errors import InputError


class PoolHead(nn.Module):
    """Global average pool, then a linear layer without bias: RLL's head H.

    Args:
        shape: (C, h, w) of the tapped map.
        embed_dim: size of the embedding.
        dropout: of the pooled features, in training.
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise InputError(f"dropout={dropout}: 0 or more, below 1")
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Linear(shape[0], embed_dim, bias=False)

    def forward(self, tapped: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, embed_dim)."""
        embeddings: Tensor = self.embedding(self.dropout(tapped.mean(dim=(2, 3))))
        return embeddings


class NormalizedPoolHead(nn.Module):
    """Global average pool, a layer norm without parameters, then a linear layer: HAPPIER's head.

    Args:
        shape: (C, h, w) of the tapped map.
        embed_dim: size of the embedding.
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape[0], elementwise_affine=False)
        self.embedding = nn.Linear(shape[0], embed_dim)

    def forward(self, tapped: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, embed_dim)."""
        embeddings: Tensor = self.embedding(self.norm(tapped.mean(dim=(2, 3))))
        return embeddings


class AuxiliaryHead(nn.Module):
    """RLL's heads L and M, built like GoogLeNet's auxiliary classifiers.

    Average pool, 1x1 convolution to 128 + BN + ReLU, linear to 1024 + BN + ReLU, linear.

    Args:
        shape: (C, h, w) of the tapped map. The linear layer fixes h and w: other image sizes need another head.
        embed_dim: size of the embedding.
        grid: average to grid x grid cells; None pools 5 x 5 with stride 3 and ceil mode, as the authors do.
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int, grid: int | None = None) -> None:
        super().__init__()
        channels, *size = shape
        if grid is None and min(size) < 5:
            raise InputError(
                f"AuxiliaryHead pools 5x5 but the tapped map is {size[0]}x{size[1]}: "
                "use larger images, a shallower tap or grid=N"
            )
        self.grid = grid
        self.reduction = nn.Conv2d(channels, 128, kernel_size=1, bias=False)
        self.reduction_norm = nn.BatchNorm2d(128)
        cells = grid * grid if grid else _ceil_pooled(size[0]) * _ceil_pooled(size[1])
        self.hidden = nn.Linear(128 * cells, 1024, bias=False)
        self.hidden_norm = nn.BatchNorm1d(1024)
        self.embedding = nn.Linear(1024, embed_dim)

    def forward(self, tapped: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, embed_dim)."""
        if self.grid:
            pooled = F.adaptive_avg_pool2d(tapped, self.grid)
        else:
            pooled = F.avg_pool2d(tapped, kernel_size=5, stride=3, ceil_mode=True)
        reduced = self.reduction_norm(self.reduction(pooled)).relu()
        hidden = self.hidden_norm(self.hidden(reduced.flatten(1))).relu()
        embeddings: Tensor = self.embedding(hidden)
        return embeddings


def _ceil_pooled(size: int) -> int:
    """Cells that a 5-wide pool of stride 3 in ceil mode leaves of ``size``."""
    return -(-(size - 5) // 3) + 1
