from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dml.ops.errors import InputError

ParameterGroups = dict[str, list[nn.Parameter]]
"""The parameters by the name of their group: backbone, heads or loss."""


def optimizer_by_role(
    parameter_groups: ParameterGroups,
    *,
    optimizer: Callable[..., Optimizer],
    lr: float,
    heads_lr_multiplier: float = 10.0,
    loss: Mapping[str, Any] | None = None,
    layer_decay: float = 1.0,
    **settings: Any,
) -> Optimizer:
    """Make one optimizer with separate settings for the parameters of the backbone, the heads and the losses.

    Args:
        parameter_groups: parameters by group; parameters that require no gradient are not trained.
        optimizer: function that makes the optimizer from a list of groups.
        lr: learning rate of the backbone, or of its last layer if ``layer_decay`` is below 1.
        heads_lr_multiplier: learning rate of the heads, as a multiple of ``lr``.
        loss: settings of the parameters of the losses (proxies), such as lr and weight_decay; the settings of the
            backbone apply to them otherwise.
        layer_decay: learning rate of a layer of the backbone as a multiple of that of the layer behind it (layer-wise
            decay; Bao et al., "BEiT", 2022, among others); 1 gives all layers the same rate. The last of the layers
            that are trained has ``lr``.
        **settings: settings of all groups, such as weight_decay and momentum.

    Raises:
        InputError: if no parameter requires a gradient, or ``layer_decay`` is not above 0 and at most 1, or the layers
            of the backbone are unknown.
    """
    if not 0 < layer_decay <= 1:
        raise InputError(f"optimizer.layer_decay={layer_decay}: must be above 0 and at most 1")
    settings_by_group: dict[str, Mapping[str, Any]] = {
        "backbone": {},
        "heads": {"lr": lr * heads_lr_multiplier},
        "loss": loss or {},
    }
    groups = [
        {"name": name, "params": trainable, **settings_by_group[name]}
        for name, parameters in parameter_groups.items()
        if (name != "backbone" or layer_decay == 1)
        and (trainable := [parameter for parameter in parameters if parameter.requires_grad])
    ]
    if layer_decay != 1:
        groups = _decay_layers(parameter_groups.get("backbone", []), lr, layer_decay) + groups
    if not groups:
        raise InputError("optimizer: no parameter requires a gradient")
    try:
        return optimizer(groups, lr=lr, **settings)
    except (ValueError, TypeError) as error:  # The constructors check their arguments.
        raise InputError(f"optimizer: {error}") from error


def _decay_layers(parameters: Sequence[nn.Parameter], lr: float, layer_decay: float) -> list[dict[str, Any]]:
    """Make a group for each trained layer of the backbone, the first layer first."""
    trained = [
        (layer, parameter) for layer, parameter in _pair_layers(parameters, layer_decay) if parameter.requires_grad
    ]
    layers = sorted({layer for layer, _ in trained})
    return [
        {
            "name": f"backbone.{layer}",
            "params": [parameter for other, parameter in trained if other == layer],
            "lr": lr * layer_decay ** (layers[-1] - layer),
        }
        for layer in layers
    ]


def _pair_layers(parameters: Sequence[nn.Parameter], layer_decay: float) -> list[tuple[int, nn.Parameter]]:
    layers: Sequence[int] = getattr(parameters, "layers", ())
    if len(layers) != len(parameters):
        raise InputError(
            f"optimizer.layer_decay={layer_decay}: the order of this network's layers is unknown; give 1, or take a "
            "network of timm"
        )
    return list(zip(layers, parameters, strict=True))
