"""Convolutions that compute the batch normalization behind them too, while it uses its running statistics.

Such a normalization is a scale and a shift of each channel, so the two are one convolution with other weights. It saves
a pass over the map. The weights are computed anew in each forward pass: parameters, gradients and checkpoints are
those of the network without folding, and a normalization that learns its statistics is computed as ever.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from dml.runtime.errors import InputError

ACTIVE_NORM = "BatchNormAct2d"
"""timm's batch normalization with an activation behind it."""

SAME_CONVOLUTION = "Conv2dSame"
"""timm's convolution that pads as TensorFlow does."""


class FoldedConvolution(nn.Conv2d):
    """A convolution that computes the normalization behind it, while that doesn't learn its statistics."""

    unfolded: type[nn.Conv2d]
    norm: tuple[nn.BatchNorm2d]
    """The normalization, in a tuple: as a submodule, a checkpoint would hold it twice."""
    convolve: Callable[[nn.Conv2d, Tensor, Tensor, Tensor], Tensor]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Convolve, and normalize if `FoldedNorm` doesn't. (B, C, h, w) -> (B, C', h', w')"""
        (norm,) = self.norm
        if norm.training:
            plain: Tensor = self.unfolded.forward(self, input)
            return plain
        assert norm.running_mean is not None  # `_can_fold` has looked
        assert norm.running_var is not None
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scale = scale if norm.weight is None else scale * norm.weight
        shift = (0 if self.bias is None else self.bias) - norm.running_mean
        shift = shift * scale if norm.bias is None else torch.addcmul(norm.bias, shift, scale)
        return self.convolve(self, input, self.weight * scale[:, None, None, None], shift)


class FoldedNorm(nn.BatchNorm2d):
    """A batch normalization that the convolution before it computes, while it doesn't learn its statistics."""

    unfolded: type[nn.BatchNorm2d]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Normalize if `FoldedConvolution` doesn't, and apply the activation if there is one. (B, C, h, w) -> same"""
        if self.training:
            plain: Tensor = self.unfolded.forward(self, input)
            return plain
        for name in ("drop", "act"):  # those of `ACTIVE_NORM`
            part = getattr(self, name, None)
            input = input if part is None else part(input)  # noqa: A001 (torch's name)
        return input


def fold_batchnorms(network: nn.Module, tapped: Iterable[str] = ()) -> int:
    """Let convolutions compute the batch normalizations behind them, in place, and return the number of those.

    A convolution is folded if nothing but one normalization uses its output, and each of both is called once. Outputs
    of ``tapped`` submodules are used elsewhere too. The network's calls mustn't depend on the images. Earlier foldings
    are undone first.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> fold_batchnorms(network)
    1
    """
    unfold_batchnorms(network)
    used = {*tapped}
    number = 0
    for name, norm_name in _find_pairs(network):
        convolution: Any = network.get_submodule(name)
        norm: Any = network.get_submodule(norm_name)
        if name in used or not _can_fold(convolution, norm):
            continue
        is_same = type(convolution).__name__ == SAME_CONVOLUTION
        convolution.unfolded, convolution.norm = type(convolution), (norm,)
        convolution.convolve = _convolve_same if is_same else nn.Conv2d._conv_forward
        norm.unfolded = type(norm)
        convolution.__class__, norm.__class__ = FoldedConvolution, FoldedNorm
        number += 1
    return number


def unfold_batchnorms(network: nn.Module) -> None:
    """Undo `fold_batchnorms`, in place."""
    for module in network.modules():
        if isinstance(module, FoldedConvolution | FoldedNorm):
            original = module.unfolded
            for name in ("norm", "convolve", "unfolded"):
                vars(module).pop(name, None)
            module.__class__ = original  # type: ignore[assignment]  # the class that it had


def _can_fold(convolution: nn.Module, norm: nn.Module) -> bool:
    """Return whether both are of kinds whose forward passes are known here."""
    return (
        (type(convolution) is nn.Conv2d or type(convolution).__name__ == SAME_CONVOLUTION)
        and (type(norm) is nn.BatchNorm2d or type(norm).__name__ == ACTIVE_NORM)
        and norm.running_mean is not None
    )


def _convolve_same(convolution: nn.Conv2d, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve with TensorFlow's padding, whose odd pixel is behind the map."""
    from timm.layers.conv2d_same import conv2d_same  # late: a network of timm has imported it
    from timm.layers.padding import get_same_padding

    stride, dilation, groups = convolution.stride, convolution.dilation, convolution.groups
    needs_copy = torch.is_grad_enabled() or images.device.type != "cpu" or torch.compiler.is_compiling()
    if needs_copy or max(dilation) > 1:
        same: Any = conv2d_same
        convolved: Tensor = same(images, weight, bias, stride, convolution.padding, dilation, groups)
        return convolved
    geometry = zip(images.shape[2:], convolution.kernel_size, stride, dilation, strict=True)
    pads = [get_same_padding(*sizes) for sizes in geometry]
    odd_height, odd_width = (pad % 2 for pad in pads)
    if odd_height or odd_width:
        weight = functional.pad(weight, (odd_width, 0, odd_height, 0))
    return functional.conv2d(images, weight, bias, stride, [(pad + 1) // 2 for pad in pads], 1, groups)


class _Tracer(fx.Tracer):
    """Traces the calls of modules without parts, of normalizations, and of layers that have updates of peft."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 (torch's names)
        is_updated = type(m).__module__.startswith("peft.")
        return is_updated or isinstance(m, nn.BatchNorm2d) or not any(True for _ in m.children())


def _find_pairs(network: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield each convolution and the only batch normalization that uses it, by name, if each of both is called once."""
    copied = deepcopy(network)
    for module in copied.modules():  # hooks would store what the tracer passes
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    try:
        graph = _Tracer().trace(copied)
    except (fx.proxy.TraceError, TypeError, AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        raise InputError(
            f"model.backbone.fold_batchnorm=true: {type(network).__name__} can't be traced ({error}); give false"
        ) from error
    calls = [node for node in graph.nodes if node.op == "call_module"]
    names = [node.target for node in calls]
    for node in calls:
        source = node.args[0] if node.args else None
        if (
            isinstance(copied.get_submodule(node.target), nn.BatchNorm2d)
            and isinstance(source, fx.Node)
            and source.op == "call_module"
            and isinstance(copied.get_submodule(str(source.target)), nn.Conv2d)
            and len(source.users) == 1
            and names.count(node.target) == names.count(source.target) == 1
        ):
            yield str(source.target), node.target
