from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from math import isqrt

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dml.ops.errors import InputError

FREEZE_BATCHNORM: dict[str | bool | None, str | None] = {
    "statistics": "statistics",
    "all": "all",
    None: None,
    True: "all",
    False: None,
}
"""The values of `Backbone`'s ``freeze_batchnorm`` and what each means."""


class Backbone(nn.Module):
    """A network without its classifier, whose maps can be tapped at named depths.

    It takes the loader's pixels as they are and brings them to the range that its weights were trained on, so
    that weights and preprocessing cannot disagree.

    Args:
        network: maps images (B, 3, H, W) to pooled features (B, F).
        mean, std: of each channel, in the units of ``scale`` and in the order of ``channels``.
        scale: pixel values 0-255 are divided by it first: 255 for PyTorch's weights, 1 for Caffe's.
        channels: "rgb" or "bgr", the order that the weights expect.
        freeze_batchnorm: what batch normalisation keeps: "statistics" (running mean and variance stay, scale and shift
            are trained), "all" (scale and shift stay too), or None (everything is trained). True and False, which
            runs of earlier versions stored, mean "all" and None.
        channels_last: memory format; halves the time of a step on CPU.
        stages: names of the submodules that end the network's stages, shallowest first.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        scale: float = 255.0,
        channels: str = "rgb",
        freeze_batchnorm: str | bool | None = None,
        channels_last: bool = True,
        stages: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if channels not in ("rgb", "bgr"):
            raise InputError(f"backbone channels={channels!r}: rgb or bgr")
        if freeze_batchnorm not in [*FREEZE_BATCHNORM]:
            raise InputError(f"model.backbone.freeze_batchnorm={freeze_batchnorm}: must be statistics, all or null")
        self.network = network
        self.channels = channels
        self.freeze_batchnorm = FREEZE_BATCHNORM[freeze_batchnorm]
        self.stages = tuple(stages)
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.register_buffer("mean", scale * torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", scale * torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        self._tapped: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []
        self.to(memory_format=self.memory_format)
        if self.freeze_batchnorm == "all":
            for module in _batchnorms(network):
                module.requires_grad_(False)
        self.train()

    def tap(self, taps: Mapping[str, str]) -> None:
        """Makes `forward` return the outputs of the named submodules, and no others: ``{"H": "layer4"}``.

        Raises:
            InputError: if the network has no such submodule.
        """
        while self._hooks:
            self._hooks.pop().remove()
        modules = dict(self.network.named_modules())
        for name, path in taps.items():
            if path not in modules:
                nearest = get_close_matches(path, modules, n=5, cutoff=0.3) or [*modules][-5:]
                raise InputError(f"model.taps.{name}={path}: no such module; nearest: {', '.join(nearest)}")
            self._hooks.append(modules[path].register_forward_hook(partial(self._keep, name)))

    def _keep(self, name: str, _module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._tapped[name] = _as_map(output, self.network)

    def forward(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """images (B, 3, H, W) RGB, 0-255 -> pooled features (B, F), tapped maps {name: (B, C, h, w)}."""
        pixels = images.flip(1) if self.channels == "bgr" else images
        pixels = ((pixels - self.mean) / self.std).contiguous(memory_format=self.memory_format)
        features = self.network(pixels)
        maps, self._tapped = self._tapped, {}
        return features, maps

    def train(self, mode: bool = True) -> "Backbone":
        """Keep frozen batch normalisation in evaluation mode, in which it uses its running statistics."""
        super().train(mode)
        if self.freeze_batchnorm:
            for module in _batchnorms(self.network):
                module.eval()
        return self


def _batchnorms(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def _as_map(output: Tensor, network: nn.Module) -> Tensor:
    """Brings a module's output to (B, C, h, w): convolutions give that, transformers tokens or channels last."""
    if output.ndim == 3:  # (B, class tokens + N, C)
        patches = output[:, getattr(network, "num_prefix_tokens", 0) :]
        count = patches.shape[1]
        side = isqrt(count) if isqrt(count) ** 2 == count else count  # the grid of a square image's patches
        return patches.transpose(1, 2).reshape(len(output), -1, side, count // side)
    if getattr(network, "output_fmt", "NCHW") == "NHWC":
        return output.permute(0, 3, 1, 2)
    return output
