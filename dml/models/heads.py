"""Embedding heads, built from the ``shape`` of one tapped map, (C, h, w), or of its tokens, (C, 1 + N, 1)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.runtime.errors import InputError, check_number

GEM_FLOOR = 1e-6
"""Value that `GeMHead` takes instead of smaller ones, whose powers aren't real or have no finite gradient."""


class TwoStepHead(nn.Module):
    """A head in two steps: a pool without parameters, computed once with ``training.frozen=true``, and an embedding.

    The pool is the mean of the map's cells, unless a head has another one.
    """

    embedding: nn.Module

    def pool(self, tapped: Tensor) -> Tensor:
        """Pool a tapped map (B, C, h, w), or tokens (B, 1 + N, C), without parameters -> (B, C) or (B, ...)."""
        return tapped.mean(dim=(2, 3))

    def embed(self, pooled: Tensor) -> Tensor:
        """Embed the result of `pool` (B, ...) by the layer ``embedding`` -> (B, embed_dim)."""
        embeddings: Tensor = self.embedding(pooled)
        return embeddings

    def forward(self, tapped: Tensor) -> Tensor:
        """Embed a tapped map (B, C, h, w), or tokens (B, 1 + N, C) -> (B, embed_dim)."""
        return self.embed(self.pool(tapped))


class PoolHead(TwoStepHead):
    """RLL's head H: a global average pool and a linear layer without bias.

    >>> PoolHead((16, 4, 4), embed_dim=8)(torch.zeros(2, 16, 4, 4)).shape
    torch.Size([2, 8])
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Linear(shape[0], embed_dim, bias=False)

    def embed(self, pooled: Tensor) -> Tensor:
        """Embed averages (B, C) -> (B, embed_dim)."""
        embeddings: Tensor = self.embedding(self.dropout(pooled))
        return embeddings


class NormalizedPoolHead(TwoStepHead):
    """HAPPIER's head: a global average pool, a layer norm without parameters, and a linear layer.

    >>> NormalizedPoolHead((16, 4, 4), embed_dim=8)(torch.zeros(2, 16, 4, 4)).shape
    torch.Size([2, 8])
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape[0], elementwise_affine=False)
        self.embedding = nn.Linear(shape[0], embed_dim)

    def embed(self, pooled: Tensor) -> Tensor:
        """Embed averages (B, C) -> (B, embed_dim)."""
        embeddings: Tensor = self.embedding(self.norm(pooled))
        return embeddings


class ClassTokenHead(TwoStepHead):
    """A linear layer of a transformer's class token after the final norm, as in Hyp-ViT (Ermolov et al., 2022).

    As in Hyp-ViT, the layer begins as an orthogonal matrix with a bias of 0. With ``embed_dim`` C, an untrained head
    therefore leaves the cosine similarities of the class tokens as they are.

    >>> ClassTokenHead((16, 1 + 4, 1), embed_dim=8)(torch.zeros(2, 1 + 4, 16)).shape
    torch.Size([2, 8])
    """

    takes_tokens: ClassVar[bool] = True

    def __init__(self, shape: tuple[int, int, int], embed_dim: int) -> None:
        super().__init__()
        self.embedding = _orthogonal_layer(shape[0], embed_dim)

    def pool(self, tapped: Tensor) -> Tensor:
        """Take the class token of tokens (B, 1 + N, C) -> (B, C)."""
        return tapped[:, 0]


class TokenMeanHead(TwoStepHead):
    """A linear layer of a transformer's class token and the mean of its patch tokens, concatenated.

    DINOv2's model card (Oquab et al., 2023) recommends these features for linear classifiers. The layer begins as an
    orthogonal matrix.

    >>> TokenMeanHead((16, 1 + 4, 1), embed_dim=8)(torch.zeros(2, 1 + 4, 16)).shape
    torch.Size([2, 8])
    """

    takes_tokens: ClassVar[bool] = True

    def __init__(self, shape: tuple[int, int, int], embed_dim: int) -> None:
        super().__init__()
        self.embedding = _orthogonal_layer(2 * shape[0], embed_dim)

    def pool(self, tapped: Tensor) -> Tensor:
        """Concatenate the class token of tokens (B, 1 + N, C) and the mean of the others -> (B, 2 C)."""
        return torch.cat([tapped[:, 0], tapped[:, 1:].mean(dim=1)], dim=1)


class GeMHead(nn.Module):
    """A generalized mean (GeM) of a map's cells, and a linear layer that begins as an orthogonal matrix.

    Channel c is pooled to (mean over cells of max(x_c, 1e-6) ** p) ** (1 / p) (Radenovic et al., "Fine-tuning CNN image
    retrieval with no human annotation", 2019, Eq. 4): the mean for p = 1, and nearly the maximum for a large p. The
    exponent p is trained with the head. Negative values count as 1e-6.

    >>> GeMHead((16, 4, 4), embed_dim=8)(torch.zeros(2, 16, 4, 4)).shape
    torch.Size([2, 8])
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int, exponent: float = 3.0) -> None:
        super().__init__()
        check_number("exponent", exponent, above=0)
        self.exponent = nn.Parameter(torch.tensor(float(exponent)))
        self.embedding = _orthogonal_layer(shape[0], embed_dim)

    def forward(self, tapped: Tensor) -> Tensor:
        """Embed a tapped map (B, C, h, w) -> (B, embed_dim)."""
        # Powers of half-precision values would underflow; autocast runs only the linear layer in half precision.
        cells = tapped.to(torch.promote_types(tapped.dtype, torch.float32)).clamp(min=GEM_FLOOR)
        # Divided by the largest cell of each channel, powers neither overflow nor all underflow.
        largest = cells.detach().amax(dim=(2, 3), keepdim=True)
        means = (cells / largest).pow(self.exponent).mean(dim=(2, 3))
        pooled = means.pow(1 / self.exponent) * largest[:, :, 0, 0]
        embeddings: Tensor = self.embedding(pooled.to(self.embedding.weight.dtype))
        return embeddings


class PooledHead(TwoStepHead):
    """A linear layer of the network's own pooled features, which ``taps: {H: pooled}`` gives.

    These are what the network's authors take for an image's embedding: the pooled attention of SigLIP 2 and Perception
    Encoder, or the normalized mean of ConvNeXt. The layer begins as an orthogonal matrix.

    >>> PooledHead((16, 1, 1), embed_dim=8)(torch.zeros(2, 16, 1, 1)).shape
    torch.Size([2, 8])
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int) -> None:
        super().__init__()
        if shape[1:] != (1, 1):
            raise InputError(
                f"PooledHead takes pooled features, but the tapped map is {shape[1]}x{shape[2]}: tap pooled"
            )
        self.embedding = _orthogonal_layer(shape[0], embed_dim)


class RawHead(TwoStepHead):
    """The network's own pooled features (C, 1, 1) as they are, which ``taps: {H: pooled}`` gives: no layer is added."""

    def __init__(self, shape: tuple[int, int, int], embed_dim: int) -> None:  # noqa: ARG002 (of every head)
        super().__init__()
        self.embedding = nn.Identity()


class AuxiliaryHead(TwoStepHead):
    """RLL's heads L and M, built like GoogLeNet's auxiliary classifiers.

    The layers are an average pool, a 1x1 convolution to 128 channels with BN and ReLU, a linear layer to 1024 units
    with BN and ReLU, and a linear layer.

    >>> AuxiliaryHead((16, 14, 14), embed_dim=8)(torch.zeros(2, 16, 14, 14)).shape
    torch.Size([2, 8])

    Args:
        grid: side of the grid that the map is averaged to; None pools 5 x 5 cells with stride 3 in ceil mode, as in
            RLL.
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

    def pool(self, tapped: Tensor) -> Tensor:
        """Average a map (B, C, h, w) to the cells of a grid -> (B, C, h', w')."""
        if self.grid:
            return F.adaptive_avg_pool2d(tapped, self.grid)
        return F.avg_pool2d(tapped, kernel_size=5, stride=3, ceil_mode=True)

    def embed(self, pooled: Tensor) -> Tensor:
        """Embed a pooled map (B, C, h', w') -> (B, embed_dim)."""
        reduced = self.reduction_norm(self.reduction(pooled)).relu()
        hidden = self.hidden_norm(self.hidden(reduced.flatten(1))).relu()
        embeddings: Tensor = self.embedding(hidden)
        return embeddings


def _pooled_size(size: int) -> int:
    return -(-(size - 5) // 3) + 1


def _orthogonal_layer(inputs: int, outputs: int) -> nn.Linear:
    """Make a linear layer whose weights are an orthogonal matrix, and whose bias is 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
