from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layers = dict[str, nn.Module]
"""Modules by the names they are registered under, in the order they run."""


class Inception(NamedTuple):
    """A block as a row of the paper's Figure 5: its branches' channels, those of the weights file."""

    name: str
    single: int  # the 1x1 branch; 0 if there is none
    triple: tuple[int, int]  # the 3x3 branch: reduction, convolution
    double: tuple[int, int]  # the branch of two 3x3 convolutions: reduction, both convolutions
    pool: str  # avg or max
    projection: int  # the 1x1 convolution after the pool; 0 passes the pool through and halves the map

    def width(self, channels: int) -> int:
        """Channels of the block's output, given those of its input."""
        return self.single + self.triple[1] + self.double[1] + (self.projection or channels)

    def branches(self, channels: int) -> list[Layers]:
        """The branches on a map of so many channels, in the order in which they are concatenated."""
        name, stride = self.name, 1 if self.projection else 2
        single = _convolution(f"{name}_1x1", channels, self.single, kernel=1) if self.single else {}
        triple = {
            **_convolution(f"{name}_3x3_reduce", channels, self.triple[0], kernel=1),
            **_convolution(f"{name}_3x3", *self.triple, kernel=3, stride=stride),
        }
        double = {
            **_convolution(f"{name}_double_3x3_reduce", channels, self.double[0], kernel=1),
            **_convolution(f"{name}_double_3x3_1", *self.double, kernel=3),
            **_convolution(f"{name}_double_3x3_2", self.double[1], self.double[1], kernel=3, stride=stride),
        }
        pool: Layers = {f"{name}_pool": _pool(self.pool, stride)}
        if self.projection:
            pool |= _convolution(f"{name}_pool_proj", channels, self.projection, kernel=1)
        return [branch for branch in (single, triple, double, pool) if branch]


INCEPTIONS = (
    Inception("inception_3a", 64, (64, 64), (64, 96), "avg", 32),
    Inception("inception_3b", 64, (64, 96), (64, 96), "avg", 64),
    Inception("inception_3c", 0, (128, 160), (64, 96), "max", 0),
    Inception("inception_4a", 224, (64, 96), (96, 128), "avg", 128),
    Inception("inception_4b", 192, (96, 128), (96, 128), "avg", 128),
    Inception("inception_4c", 160, (128, 160), (128, 160), "avg", 128),
    Inception("inception_4d", 96, (128, 192), (160, 192), "avg", 128),
    Inception("inception_4e", 0, (128, 192), (192, 256), "max", 0),
    Inception("inception_5a", 352, (192, 320), (160, 224), "avg", 128),
    Inception("inception_5b", 352, (192, 320), (192, 224), "max", 128),
)


class BNInception(nn.Module):
    """BN-Inception (Ioffe and Szegedy, "Batch Normalization", 2015, Figure 5), also called GoogLeNet V2.

    Its weights are in the file ``bn_inception-52deb4733.pth``, a conversion from Caffe named by PyPI's
    ``pretrainedmodels`` 0.7.4, whose flat keys are kept so that the file loads with ``strict=True``. They
    expect BGR pixels from 0 to 255 minus the mean 104/117/128, which the caller sees to.

    Each block's output can be tapped: the submodules ``inception_3a_output`` to ``inception_5b_output``. Of
    224 x 224 pixels 3c is (B, 576, 14, 14), 4e is (B, 1056, 7, 7) and 5b is (B, 1024, 7, 7).

    Departures from ``pretrainedmodels``: the last pool takes maps of any size, and images whose maps have odd
    sides, 240 x 240 among them, don't fail (see `HalvingMaxPool`). ``num_classes=0`` has no classifier.
    """

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self._stem = self._register(_stem())
        self._branches: dict[str, list[list[str]]] = {}
        channels = 192
        for block in INCEPTIONS:
            self._branches[block.name] = [self._register(layers) for layers in block.branches(channels)]
            self.add_module(f"{block.name}_output", Concatenate())
            channels = block.width(channels)
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.last_linear = nn.Linear(channels, num_classes) if num_classes else nn.Identity()

    def _register(self, layers: Layers) -> list[str]:
        for name, layer in layers.items():
            self.add_module(name, layer)
        return [*layers]

    def _run(self, names: Iterable[str], maps: Tensor) -> Tensor:
        for name in names:
            maps = self.get_submodule(name)(maps)
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W), in the range above -> logits (B, num_classes), or pooled features (B, 1024)."""
        maps = self._run(self._stem, images)
        for name, branches in self._branches.items():
            outputs = [self._run(branch, maps) for branch in branches]
            maps = self.get_submodule(f"{name}_output")(*outputs)
        logits: Tensor = self.last_linear(self.global_pool(maps).flatten(1))
        return logits


class Concatenate(nn.Module):
    """Joins branches' outputs; a module, so that a forward hook can tap a block."""

    def forward(self, *branches: Tensor) -> Tensor:
        """(B, C_i, H, W) each -> (B, sum of C_i, H, W)."""
        return torch.cat(branches, dim=1)


class HalvingMaxPool(nn.Module):
    """Max pool 3, stride 2 of maps that are nowhere negative, such as a ReLU's: side n gives ceil(n / 2).

    On even sides that is Caffe's pool in ceil mode. On odd ones Caffe's ends a window earlier than the padded
    convolutions beside it in the block, whose outputs then couldn't be concatenated.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, ceil(H / 2), ceil(W / 2))."""
        height, width = maps.shape[-2:]
        if height % 2 or width % 2:
            maps = F.pad(maps, (0, width % 2, 0, height % 2))  # zeros: no window's maximum changes
        return F.max_pool2d(maps, kernel_size=3, stride=2, ceil_mode=True)


def _stem() -> Layers:
    """Images (B, 3, H, W) -> (B, 192, ~H / 8, ~W / 8)."""
    return {
        **_convolution("conv1_7x7_s2", 3, 64, kernel=7, stride=2),
        "pool1_3x3_s2": nn.MaxPool2d(3, stride=2, ceil_mode=True),
        **_convolution("conv2_3x3_reduce", 64, 64, kernel=1),
        **_convolution("conv2_3x3", 64, 192, kernel=3),
        "pool2_3x3_s2": nn.MaxPool2d(3, stride=2, ceil_mode=True),
    }


def _convolution(name: str, channels: int, width: int, *, kernel: int, stride: int = 1) -> Layers:
    """Convolution, batch normalisation, ReLU; the bias, which the normalisation cancels, is in the file."""
    return {
        name: nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2),
        f"{name}_bn": nn.BatchNorm2d(width),
        f"{name}_relu": nn.ReLU(inplace=True),
    }


def _pool(kind: str, stride: int) -> nn.Module:
    if stride == 2:
        return HalvingMaxPool()
    if kind == "max":
        return nn.MaxPool2d(3, stride=1, padding=1)
    return nn.AvgPool2d(3, stride=1, padding=1)  # the average counts the padding, as Caffe's does
