import torch.nn.functional as F
from torch import Tensor, nn

from dml.ops.errors import InputError


class PoolHead(nn.Module):
    """RLL's head H: a global average pool and a linear layer without bias.

    >>> import torch
    >>> PoolHead((16, 4, 4), embed_dim=8)(torch.zeros(2, 16, 4, 4)).shape
    torch.Size([2, 8])

    Args:
        shape: shape (C, h, w) of the tapped map.
        embed_dim: size of the embedding.
        dropout: probability that a pooled feature is set to 0 in training.
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise InputError(f"dropout={dropout}: must be 0 or more, below 1")
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Linear(shape[0], embed_dim, bias=False)

    def forward(self, tapped: Tensor) -> Tensor:
        """Embed a tapped map (B, C, h, w) -> (B, embed_dim)."""
        embeddings: Tensor = self.embedding(self.dropout(tapped.mean(dim=(2, 3))))
        return embeddings


class NormalizedPoolHead(nn.Module):
    """HAPPIER's head: a global average pool, a layer norm without parameters, and a linear layer.

    >>> import torch
    >>> NormalizedPoolHead((16, 4, 4), embed_dim=8)(torch.zeros(2, 16, 4, 4)).shape
    torch.Size([2, 8])

    Args:
        shape: shape (C, h, w) of the tapped map.
        embed_dim: size of the embedding.
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape[0], elementwise_affine=False)
        self.embedding = nn.Linear(shape[0], embed_dim)

    def forward(self, tapped: Tensor) -> Tensor:
        """Embed a tapped map (B, C, h, w) -> (B, embed_dim)."""
        embeddings: Tensor = self.embedding(self.norm(tapped.mean(dim=(2, 3))))
        return embeddings


class AuxiliaryHead(nn.Module):
    """RLL's heads L and M, built like GoogLeNet's auxiliary classifiers.

    The layers are an average pool, a 1x1 convolution to 128 channels with BN and ReLU, a linear layer to 1024 units
    with BN and ReLU, and a linear layer.

    >>> import torch
    >>> AuxiliaryHead((16, 14, 14), embed_dim=8)(torch.zeros(2, 16, 14, 14)).shape
    torch.Size([2, 8])

    Args:
        shape: shape (C, h, w) of the tapped map; the head works for this h and w alone.
        embed_dim: size of the embedding.
        grid: side of the grid that the map is averaged to; None pools 5 x 5 cells with stride 3 in ceil mode, as in
            RLL.

    Raises:
        InputError: if ``grid`` is None and the map is smaller than 5 x 5.
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
        cells = grid * grid if grid else _pooled_size(size[0]) * _pooled_size(size[1])
        self.hidden = nn.Linear(128 * cells, 1024, bias=False)
        self.hidden_norm = nn.BatchNorm1d(1024)
        self.embedding = nn.Linear(1024, embed_dim)

    def forward(self, tapped: Tensor) -> Tensor:
        """Embed a tapped map (B, C, h, w) -> (B, embed_dim)."""
        if self.grid:
            pooled = F.adaptive_avg_pool2d(tapped, self.grid)
        else:
            pooled = F.avg_pool2d(tapped, kernel_size=5, stride=3, ceil_mode=True)
        reduced = self.reduction_norm(self.reduction(pooled)).relu()
        hidden = self.hidden_norm(self.hidden(reduced.flatten(1))).relu()
        embeddings: Tensor = self.embedding(hidden)
        return embeddings


def _pooled_size(size: int) -> int:
    """Compute the side of a map after a pool of width 5 and stride 3 in ceil mode."""
    return -(-(size - 5) // 3) + 1
