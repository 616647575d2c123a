from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layers = dict[str, nn.Module]
"""Modules by the names under which they are registered, in the order in which they run."""


class Inception(NamedTuple):
    """Numbers of channels of an Inception block's branches, as in the paper's Figure 5 and in the weights file.

    >>> INCEPTIONS[0].name, INCEPTIONS[0].width(192)
    ('inception_3a', 256)
    """

    name: str
    single: int  # 1x1 branch; 0 if there is no such branch
    triple: tuple[int, int]  # 3x3 branch: of the reduction, of the convolution
    double: tuple[int, int]  # branch of two 3x3 convolutions: of the reduction, of both convolutions
    pool: str  # "avg" or "max"
    projection: int  # 1x1 convolution after the pool; with 0 there is none, and the block halves the map

    def width(self, channels: int) -> int:
        """Compute the number of channels of the block's output from that of its input."""
        return self.single + self.triple[1] + self.double[1] + (self.projection or channels)

    def branches(self, channels: int) -> list[Layers]:
        """Build the branches for inputs with this number of channels, in the order of their concatenation."""
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

BRANCHES = {"inception_3c": ("loss1", 14, 4), "inception_4e": ("loss2", 7, 2)}
"""Name of the auxiliary branch behind a block, and the sides of the map that it takes and of its pooled map."""


class BNInception(nn.Module):
    """BN-Inception (Ioffe and Szegedy, "Batch Normalization", 2015, Figure 5), also called GoogLeNet V2.

    The pretrained weights are in the file ``bn_inception-52deb4733.pth``, converted from Caffe and published with the
    PyPI package ``pretrainedmodels`` 0.7.4. The submodules have the flat names of that package, so that the file
    loads with ``strict=True``. The weights expect BGR pixels from 0 to 255 minus the mean 104/117/128; the caller has
    to subtract it.

    The submodules ``inception_3a_output`` to ``inception_5b_output`` can be tapped for the outputs of the blocks. For
    images of 224 x 224 pixels the output of 3c is (B, 576, 14, 14), of 4e (B, 1056, 7, 7) and of 5b (B, 1024, 7, 7).

    With ``branches`` the network also has the auxiliary branches of its training on ImageNet, without their 1000-class
    layers, in whose place are RLL's heads L and M (Sec. 4.1.3). ``loss1_output`` and ``loss2_output`` can be tapped for
    their outputs (B, 1024, 1, 1). The weights are in Caffe's ``googlenet_bn.caffemodel``, which RLL's training files
    name, and which expects the mean 104/117/123.

    Departures from ``pretrainedmodels``: the last pool takes maps of any size, and images of any size work, such as
    240 x 240 pixels, where some maps have odd sides (see `HalvingMaxPool`).

    >>> BNInception(num_classes=0).eval()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1024])
    """

    def __init__(self, num_classes: int = 1000, *, branches: bool = False) -> None:
        super().__init__()
        self._stem = self._register(_stem())
        self._branches: dict[str, list[list[str]]] = {}
        self._auxiliary: dict[str, list[str]] = {}
        channels = 192
        for block in INCEPTIONS:
            self._branches[block.name] = [self._register(layers) for layers in block.branches(channels)]
            self.add_module(f"{block.name}_output", Concatenate())
            channels = block.width(channels)
            if branches and block.name in BRANCHES:
                self._auxiliary[block.name] = self._register(_auxiliary_branch(*BRANCHES[block.name], channels))
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
        """Compute logits (B, num_classes) of images (B, 3, H, W), or pooled features (B, 1024) without a classifier."""
        maps = self._run(self._stem, images)
        for name, branches in self._branches.items():
            outputs = [self._run(branch, maps) for branch in branches]
            maps = self.get_submodule(f"{name}_output")(*outputs)
            self._run(self._auxiliary.get(name, ()), maps)
        logits: Tensor = self.last_linear(self.global_pool(maps).flatten(1))
        return logits


class Concatenate(nn.Module):
    """Concatenates the outputs of branches; it is a module so that a forward hook can tap the block.

    >>> Concatenate()(torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 4, 4)).shape
    torch.Size([1, 5, 4, 4])
    """

    def forward(self, *branches: Tensor) -> Tensor:
        """Concatenate maps (B, C_i, H, W) by channels -> (B, sum of C_i, H, W)."""
        return torch.cat(branches, dim=1)


class HalvingMaxPool(nn.Module):
    """Max pool of width 3 and stride 2 for maps without negative values: side n becomes ceil(n / 2).

    For even sides this is Caffe's pool in ceil mode. For odd sides Caffe's pool gives one row less than the padded
    convolutions of the same block, so that the outputs couldn't be concatenated.

    >>> HalvingMaxPool()(torch.zeros(1, 2, 7, 8)).shape
    torch.Size([1, 2, 4, 4])
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Pool maps (B, C, H, W) -> (B, C, ceil(H / 2), ceil(W / 2))."""
        height, width = maps.shape[-2:]
        if height % 2 or width % 2:
            maps = F.pad(maps, (0, width % 2, 0, height % 2))  # zeros change no maximum
        return F.max_pool2d(maps, kernel_size=3, stride=2, ceil_mode=True)


class BranchPool(nn.Module):
    """Average pool of width 5 and stride 3 in ceil mode; a map of another size than `side` is resized to it first.

    >>> BranchPool(7)(torch.zeros(1, 2, 9, 9)).shape
    torch.Size([1, 2, 2, 2])
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, maps: Tensor) -> Tensor:
        """Pool maps (B, C, H, W) -> (B, C, h, h)."""
        if maps.shape[-2:] != (self.side, self.side):
            maps = F.adaptive_avg_pool2d(maps, self.side)
        return F.avg_pool2d(maps, kernel_size=5, stride=3, ceil_mode=True)


def _auxiliary_branch(name: str, side: int, pooled_side: int, channels: int) -> Layers:
    """Build an auxiliary branch: a block's output (B, channels, H, W) -> (B, 1024, 1, 1)."""
    return {
        f"{name}_pool": BranchPool(side),
        **_convolution(f"{name}_conv", channels, 128, kernel=1),
        f"{name}_flat": nn.Flatten(),
        f"{name}_fc": nn.Linear(128 * pooled_side**2, 1024),
        f"{name}_fc_bn": nn.BatchNorm1d(1024),
        f"{name}_fc_relu": nn.ReLU(inplace=True),
        f"{name}_output": nn.Unflatten(1, (1024, 1, 1)),  # heads embed maps, and this one has one cell
    }


def _stem() -> Layers:
    """Build the layers before the first block: images (B, 3, H, W) -> (B, 192, ~H / 8, ~W / 8)."""
    return {
        **_convolution("conv1_7x7_s2", 3, 64, kernel=7, stride=2),
        "pool1_3x3_s2": nn.MaxPool2d(3, stride=2, ceil_mode=True),
        **_convolution("conv2_3x3_reduce", 64, 64, kernel=1),
        **_convolution("conv2_3x3", 64, 192, kernel=3),
        "pool2_3x3_s2": nn.MaxPool2d(3, stride=2, ceil_mode=True),
    }


def _convolution(name: str, channels: int, width: int, *, kernel: int, stride: int = 1) -> Layers:
    """Build convolution, batch normalization and ReLU; the needless bias is there because the weights file has it."""
    return {
        name: nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2),
        f"{name}_bn": nn.BatchNorm2d(width),
        f"{name}_relu": nn.ReLU(inplace=True),
    }


def _pool(kind: str, stride: int) -> nn.Module:
    """Build the pool of a block's pool branch; a stride of 2 is always a max pool."""
    if stride == 2:
        return HalvingMaxPool()
    if kind == "max":
        return nn.MaxPool2d(3, stride=1, padding=1)
    return nn.AvgPool2d(3, stride=1, padding=1)  # like Caffe's, the mean includes the padding
