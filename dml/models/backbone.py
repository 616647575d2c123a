from collections.abc import Mapping, Sequence
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dml.models.folding import fold_batchnorms
from dml.runtime.errors import InputError, check_choice, suggest

CHANNELS_LAST = ("VOLO", "VisionTransformerSAM")
"""Networks of timm whose stages give (B, h, w, C) without saying so."""
FINAL_TAPS = ("tokens", "patches", "pooled")
"""Taps that name no submodule: see `Backbone.tap`."""


class ParameterList(list[nn.Parameter]):
    """A list of a module's parameters with the kind of each: "norm", "bias" or "weight".

    Args:
        module: module whose parameters are listed.
        layers: number of the layer of each parameter, for a layer-wise decay; empty if they are unknown.

    >>> ParameterList(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))).kinds
    ['weight', 'bias', 'norm', 'norm']
    """

    def __init__(self, module: nn.Module, layers: Sequence[int] = ()) -> None:
        named = list(module.named_parameters())
        super().__init__(parameter for _, parameter in named)
        self.kinds = [_find_kind(module, name) for name, _ in named]
        self.layers = list(layers)


def _find_kind(module: nn.Module, name: str) -> str:
    owner, _, attribute = name.rpartition(".")
    is_norm = "norm" in type(module.get_submodule(owner)).__name__.lower()
    return "norm" if is_norm else "bias" if attribute == "bias" else "weight"


class Backbone(nn.Module):
    """A network without its classifier, which can also return the outputs (maps) of chosen submodules.

    A backbone takes pixel values from 0 to 255 and normalizes them as its pretrained weights expect. Preprocessing is
    thereby part of the network and always fits its weights. `fit_image_size` notes what it computed anew in
    ``fitted_names``.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, kernel_size=3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> backbone = Backbone(network, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> backbone.tap({"H": "0"})
    >>> features, maps = backbone(torch.zeros(2, 3, 8, 8))
    >>> features.shape, maps["H"].shape
    (torch.Size([2, 4]), torch.Size([2, 4, 6, 6]))

    Args:
        network: module from images (B, 3, H, W) to pooled features (B, F).
        mean: mean of each channel's pixel values after division by ``scale``, in the order of ``channels``.
        std: standard deviation of each channel's pixel values after division by ``scale``.
        scale: number that pixel values are divided by first: 255 for PyTorch's weights, 1 for Caffe's.
        channels: order of the channels that the weights expect, "rgb" or "bgr".
        freeze_batchnorm: part of batch normalization that isn't trained: "statistics" (running mean and variance),
            "all" (scale and shift as well), or None.
        channels_last: whether images are stored channels last in memory, which halves the time of a step on CPU.
        fold_batchnorm: whether convolutions compute the batch normalizations behind them while these use running
            statistics, that is in evaluations, and in training with ``freeze_batchnorm``. Results differ by rounding.
        stages: names of the submodules that end the network's stages, shallowest first.
        layers: number of the layer, from 0 for the first, of each of the network's parameters by name; with them, an
            optimizer can give deeper layers larger learning rates. An empty mapping if the layers are unknown.
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
        freeze_batchnorm: str | None = None,
        channels_last: bool = True,
        fold_batchnorm: bool = False,
        stages: Sequence[str] = (),
        layers: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        check_choice("model.backbone.channels", channels, ("rgb", "bgr"))
        check_choice("model.backbone.freeze_batchnorm", freeze_batchnorm, ("statistics", "all", None))
        self.network = network
        self.channels = channels
        self.freeze_batchnorm = freeze_batchnorm
        self.stages = tuple(stages)
        self.layers = dict(layers or {})
        self.channels_last = channels_last
        self.fold_batchnorm = fold_batchnorm
        self.register_buffer("mean", scale * torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", scale * torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        self.fitted_names: frozenset[str] = frozenset()
        self._keeps_frozen_norms = False
        self._taps: dict[str, str] = {}
        self._tapped_maps: dict[str, Tensor] = {}
        self._pooled_taps: list[str] = []
        self._hooks: list[RemovableHandle] = []
        self.to(memory_format=self.memory_format)
        if self.freeze_batchnorm == "all":
            for module in _batchnorms(network):
                module.requires_grad_(False)
        self.train()

    @property
    def memory_format(self) -> torch.memory_format:
        """The order in memory of the weights and images; torch.save can't store it, so it is no attribute."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def tap(self, taps: Mapping[str, str]) -> None:
        """Choose the submodules whose outputs `forward` returns, such as ``{"H": "layer4"}``.

        Three words stand for outputs of the whole network:

        - "tokens": the class token and the patch tokens of a transformer of timm after the final norm, (B, 1 + N, C).
          Register tokens are left out.
        - "patches": the map (B, C, h, w) of the patch tokens after the final norm.
        - "pooled": the network's pooled features, as a map of one cell, (B, F, 1, 1).
        """
        self._taps = dict(taps)
        while self._hooks:
            self._hooks.pop().remove()
        self._pooled_taps = []
        modules = dict(self.network.named_modules())
        for name, path in taps.items():
            if path in FINAL_TAPS and path not in modules:
                self._tap_final(name, path, modules)
                continue
            if path not in modules:
                raise InputError(f"model.taps.{name}={path}: no such module{suggest(path, modules)}")
            self._hooks.append(modules[path].register_forward_hook(partial(self._store_map, name)))
        if self.fold_batchnorm:
            fold_batchnorms(self.network, taps.values())

    def renew(self) -> None:
        """Tap the network again, and store it as this backbone does, after submodules have been replaced."""
        self.to(memory_format=self.memory_format)
        self.tap(self._taps)
        self.train(self.training)

    def keep_frozen_norms(self) -> None:
        """Let each batch normalization whose scale isn't trained use its running statistics from now on."""
        self._keeps_frozen_norms = True
        self.train(self.training)

    def _tap_final(self, name: str, path: str, modules: Mapping[str, nn.Module]) -> None:
        """Tap the tokens, patches or pooled features of the whole network."""
        if path == "pooled":
            self._pooled_taps.append(name)
            return
        is_transformer = "norm" in modules and hasattr(self.network, "num_prefix_tokens")
        if not is_transformer or (path == "tokens" and getattr(self.network, "cls_token", None) is None):
            missing = "class token here; tap patches" if is_transformer else "tokens that can be tapped; tap a stage"
            raise InputError(f"model.taps.{name}={path}: {type(self.network).__name__} has no {missing} or pooled")
        self._hooks.append(modules["norm"].register_forward_hook(partial(self._store_tokens, name, path)))

    def fit_image_size(self, image_size: int) -> bool:
        """Fit a transformer of timm, which is made for images of one size, to another, and return whether it can be."""
        set_input_size: Any = getattr(self.network, "set_input_size", None)
        if set_input_size is not None:
            shapes = {name: value.shape for name, value in self.state_dict().items()}
            set_input_size(img_size=image_size)
            changed = {name for name, value in self.state_dict().items() if value.shape != shapes.get(name)}
            self.fitted_names |= changed
        return set_input_size is not None

    def run_blank(self, image_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Run on a black image, as `forward` does; a transformer made for another size is fitted to this one."""
        image = torch.zeros(1, 3, image_size, image_size)
        try:
            return self.forward(image)
        except (AssertionError, RuntimeError):
            if not self.fit_image_size(image_size):
                raise
            return self.forward(image)

    @property
    def layered_parameters(self) -> ParameterList:
        """Return the parameters with the layer of each."""
        layers = [self.layers[name] for name, _ in self.network.named_parameters()] if self.layers else []
        return ParameterList(self.network, layers)

    def _store_map(self, name: str, _module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(output, Tensor):  # some stages give several maps at once, which no head takes
            self._tapped_maps[name] = _to_map(output, self.network)

    def _store_tokens(self, name: str, path: str, norm: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        network: Any = self.network
        if isinstance(norm, nn.Identity):  # Networks such as EVA-02 have their norm behind the pool.
            output = network.fc_norm(output)
        if path == "patches":
            self._tapped_maps[name] = _to_map(output, network)
        else:
            self._tapped_maps[name] = torch.cat([output[:, :1], output[:, network.num_prefix_tokens :]], dim=1)

    def forward(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute pooled features (B, F) and the tapped maps {name: (B, C, h, w)} of RGB images (B, 3, H, W), 0-255."""
        pixels = images.flip(1) if self.channels == "bgr" else images
        pixels = ((pixels - self.mean) / self.std).contiguous(memory_format=self.memory_format)
        features = self.network(pixels)
        maps, self._tapped_maps = self._tapped_maps, {}
        maps |= {name: features.flatten(1)[:, :, None, None] for name in self._pooled_taps}
        return features, maps

    @property
    def has_untrained_norms(self) -> bool:
        """Whether all batch normalization is frozen at the mean of 0 that it has before any training."""
        norms = _batchnorms(self.network)
        is_frozen = self.freeze_batchnorm or not any(p.requires_grad for norm in norms for p in norm.parameters())
        means = [norm.running_mean for norm in norms if norm.running_mean is not None]
        return bool(is_frozen and means) and not any(mean.any() for mean in means)

    def train(self, mode: bool = True) -> "Backbone":
        """Set the training mode, but let frozen batch normalization use its running statistics."""
        super().train(mode)
        for module in _batchnorms(self.network):
            is_frozen = module.weight is None or not module.weight.requires_grad
            if self.freeze_batchnorm or (self._keeps_frozen_norms and is_frozen):
                module.eval()
        return self


def _batchnorms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def _to_map(output: Tensor, network: nn.Module) -> Tensor:
    """Convert the output of a module to (B, C, h, w); a transformer's output is (B, N, C) or (B, h, w, C)."""
    if output.ndim == 3:  # (B, prefix tokens + N, C)
        patches = output[:, getattr(network, "num_prefix_tokens", 0) :]
        count = patches.shape[1]
        # The patches of a square image form a square grid; other numbers of patches become a single column.
        side = isqrt(count) if isqrt(count) ** 2 == count else count
        return patches.transpose(1, 2).reshape(len(output), -1, side, count // side)
    is_channels_last = getattr(network, "output_fmt", "NCHW") == "NHWC"
    if output.ndim == 4 and type(network).__name__ in CHANNELS_LAST:
        stages: Any = network.feature_info
        is_channels_last = output.shape[-1] in {stage["num_chs"] for stage in stages}
    return output.permute(0, 3, 1, 2) if is_channels_last else output
