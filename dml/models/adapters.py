"""Adapters: trainings in which most of a pretrained backbone stays as it is, and a small part learns.

An adapter is called with an `EmbeddingModel`, which it changes in place. Heads always learn. Parameters that were
frozen before stay frozen, such as those that no head uses. Batch normalization whose scale doesn't learn uses its
running statistics, which then stay as they are too.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.folding import unfold_batchnorms
from dml.runtime.errors import InputError, check_installed, check_number, check_whole, suggest

ATTENTION_PROJECTIONS = ("qkv", "q_proj", "k_proj", "v_proj")
"""Names of the linear layers of timm's transformers that compute queries, keys and values."""


class PartialTraining:
    """Base class of the adapters that let a part of the backbone's own parameters learn, named by ``part``."""

    part = ""

    def __call__(self, model: EmbeddingModel) -> None:
        """Freeze the parameters of the backbone that aren't chosen."""
        backbone = model.backbone
        named = {name: p for name, p in backbone.network.named_parameters() if p.requires_grad}
        chosen = set(self.choose(backbone, [*named]))
        if not chosen:
            remedy = "model.backbone.freeze_batchnorm=all freezes some; give statistics"
            reason = remedy if backbone.freeze_batchnorm == "all" else "choose another adapter"
            network = type(backbone.network).__name__
            raise InputError(f"adapter: no {self.part} of this network, {network}, may learn; {reason}")
        for name, parameter in named.items():
            parameter.requires_grad_(name in chosen)
        backbone.keep_frozen_norms()

    def choose(self, backbone: Backbone, names: Sequence[str]) -> Iterable[str]:
        """Return the names of the parameters that learn."""
        raise NotImplementedError


class BitFit(PartialTraining):
    """Let only the biases of the backbone learn (Ben Zaken et al., "BitFit", 2022).

    >>> from dml.models.heads import PoolHead
    >>> from dml.models.small_cnn import small_cnn
    >>> model = EmbeddingModel(small_cnn(), taps={"H": "pool2"}, head={"H": PoolHead}, heads=["H"], image_size=28)
    >>> BitFit()(model)
    >>> [name for name, parameter in model.backbone.network.named_parameters() if parameter.requires_grad]
    ['conv1.bias', 'conv2.bias']
    """

    part = "bias"

    def choose(self, backbone: Backbone, names: Sequence[str]) -> Iterable[str]:  # noqa: ARG002
        """Return the names that are "bias", or end with "_bias" as in timm's EVA."""
        return [name for name in names if re.fullmatch(r"(.*[._])?bias", name)]


class NormOnly(PartialTraining):
    """Let only the scales and shifts of the backbone's normalization layers learn.

    Batch normalization uses the statistics of the batch, and updates its running statistics, unless
    ``freeze_batchnorm`` of the backbone freezes them (Frankle et al., "Training BatchNorm and Only BatchNorm", 2021).
    """

    part = "normalization layer"

    def choose(self, backbone: Backbone, names: Sequence[str]) -> Iterable[str]:
        """Return the names of the parameters of layers whose class, or a base class of it, is named a norm."""
        norms = [
            name
            for name, module in backbone.network.named_modules()
            if any("Norm" in base.__name__ for base in type(module).__mro__)  # of torch or of timm
        ]
        return [name for name in names if name.rpartition(".")[0] in norms]


class LastBlocks(PartialTraining):
    """Let only the last blocks of the backbone that a head uses learn, with the layers behind them."""

    part = "block"

    def __init__(self, blocks: int = 2) -> None:
        check_whole("adapter.blocks", blocks, least=1)
        self.blocks = blocks

    def choose(self, backbone: Backbone, names: Sequence[str]) -> Iterable[str]:
        """Return the names of the parameters of the last blocks."""
        if not backbone.layers:
            raise InputError(
                f"adapter.blocks={self.blocks}: the blocks of {type(backbone.network).__name__} are unknown; take a "
                "network of timm or a ResNet"
            )
        # Layer 0 is the stem.
        numbers = sorted({backbone.layers[name] for name in names} - {0})
        if self.blocks > len(numbers):
            raise InputError(f"adapter.blocks={self.blocks}: the heads use {len(numbers)} blocks of this network")
        return [name for name in names if backbone.layers[name] in numbers[-self.blocks :]]


class LoRA:
    r"""Freeze the backbone, and add to some of its layers low-rank updates that learn (Hu et al., "LoRA", 2022).

    The weights W of a layer become W + (alpha / rank) B A. A, with ``rank`` rows, begins with random numbers and B with
    zeros, so that the network begins as it was. The layers are those of the package peft.

    Args:
        alpha: scale of the updates, as a multiple of the rank.
        target_modules: last parts of the names of the layers that get updates, such as ["qkv", "proj"]. They must be
            linear layers, or convolutions with one group. None takes the layers that compute queries, keys and values
            (`ATTENTION_PROJECTIONS`) if the network has such; otherwise all linear layers and convolutions with one
            group, apart from those that read the pixels.
    """

    def __init__(
        self,
        rank: int = 8,
        alpha: float = 16.0,
        dropout: float = 0.0,
        target_modules: Sequence[str] | None = None,
    ) -> None:
        check_whole("adapter.rank", rank, least=1)
        check_number("adapter.alpha", alpha, above=0)
        check_installed("peft", extra="peft")
        self.rank, self.alpha, self.dropout = rank, alpha, dropout
        self.target_modules = None if target_modules is None else [*map(str, target_modules)]

    def __call__(self, model: EmbeddingModel) -> None:
        """Replace the chosen layers of the backbone by peft's, which hold them and their updates."""
        from peft import LoraConfig, inject_adapter_in_model  # late: it imports transformers

        backbone = model.backbone
        unfold_batchnorms(backbone.network)  # `Backbone.renew` folds those of layers that stay as they are
        names = self._choose_layers(backbone.network)
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules="|".join(map(re.escape, names)),
        )
        inject_adapter_in_model(config, backbone.network)
        backbone.layers = _number_updates(backbone.network, backbone.layers)
        backbone.renew()
        backbone.keep_frozen_norms()
        if unreached := model.find_unreached():
            raise InputError(
                f"adapter.target_modules={self.target_modules}: the network takes the weights of "
                f"{unreached[0].partition('.lora_')[0]} without calling it, so an update has no effect; name other "
                "layers, such as [proj]"
            )

    def _choose_layers(self, network: nn.Module) -> list[str]:
        """Return the names of the layers that get updates."""
        layers = {name: module for name, module in network.named_modules() if _can_update(module)}
        if self.target_modules is None:
            names = _select(layers, ATTENTION_PROJECTIONS)
            return names or [name for name, layer in layers.items() if getattr(layer, "in_channels", 4) > 3]
        for target in self.target_modules:
            if not _select(layers, [target]):
                known = {name.rpartition(".")[2] for name in layers}
                raise InputError(
                    f"adapter.target_modules={self.target_modules}: no linear layer or convolution with one group that "
                    f"a head uses is named {target}{suggest(target, known)}"
                )
        return _select(layers, self.target_modules)


def merge_updates(model: nn.Module) -> None:
    """Add the updates of `LoRA` to the weights of their layers, in place, so that the network is a plain one again."""
    for backbone in [module for module in model.modules() if isinstance(module, Backbone)]:
        if not any(".lora_A." in name for name, _ in backbone.network.named_parameters()):
            continue
        from peft.tuners.tuners_utils import BaseTunerLayer

        updated = [(name, part) for name, part in backbone.network.named_modules() if isinstance(part, BaseTunerLayer)]
        for name, layer in updated:
            layer.merge()
            parent, _, child = name.rpartition(".")
            setattr(backbone.network.get_submodule(parent), child, layer.get_base_layer())
        backbone.layers = {plain_name(name): number for name, number in backbone.layers.items() if ".lora_" not in name}
        backbone.renew()


def plain_name(name: str) -> str:
    """Return the name that a parameter has in the network without updates.

    >>> plain_name("blocks.0.attn.qkv.base_layer.weight")
    'blocks.0.attn.qkv.weight'
    """
    return name.replace(".base_layer.", ".")


def _number_updates(network: nn.Module, numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the number of the layer of each parameter; an update has the number of the weights that it changes."""
    if not numbers:
        return {}
    return {
        name: numbers[f"{name.partition('.lora_')[0]}.weight" if ".lora_" in name else plain_name(name)]
        for name, _ in network.named_parameters()
    }


def _can_update(layer: nn.Module) -> bool:
    """Return whether a layer is used by a head and can get an update; subclasses may compute something else."""
    is_plain = type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.groups == 1)
    weight: Any = getattr(layer, "weight", None)
    return is_plain and bool(weight.requires_grad)


def _select(layers: Iterable[str], last_parts: Sequence[str]) -> list[str]:
    return [name for name in layers if any(f".{name}".endswith(f".{part}") for part in last_parts)]
