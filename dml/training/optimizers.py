from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dml.ops.errors import InputError

NOT_NEGATIVE = ("lr", "heads_lr_multiplier", "weight_decay", "momentum")
"""Settings that must be numbers from 0 on; PyTorch's optimizers refuse others without the key that was given."""

ParameterGroups = dict[str, list[nn.Parameter]]
"""The parameters by the name of their group: backbone, heads or loss."""


def optimizer_by_role(
    parameter_groups: ParameterGroups,
    *,
    optimizer: Callable[..., Optimizer],
    lr: float,
    heads_lr_multiplier: float = 10.0,
    loss: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Optimizer:
    """Make one optimizer with separate settings for the parameters of the backbone, the heads and the losses.

    Args:
        parameter_groups: parameters by group; parameters that require no gradient are not trained.
        optimizer: function that makes the optimizer from a list of groups.
        lr: learning rate of the backbone.
        heads_lr_multiplier: learning rate of the heads, as a multiple of ``lr``.
        loss: settings of the parameters of the losses (proxies), such as lr and weight_decay; the settings of the
            backbone apply to them otherwise.
        **settings: settings of all groups, such as weight_decay and momentum.

    Raises:
        InputError: if no parameter requires a gradient, or a setting is none that the optimizer takes.
    """
    _check_rates({"lr": lr, "heads_lr_multiplier": heads_lr_multiplier, **settings}, "optimizer")
    _check_rates(loss or {}, "optimizer.loss")
    settings_by_group: dict[str, Mapping[str, Any]] = {
        "backbone": {},
        "heads": {"lr": lr * heads_lr_multiplier},
        "loss": loss or {},
    }
    groups = [
        {"name": name, "params": trainable, **settings_by_group[name]}
        for name, parameters in parameter_groups.items()
        if (trainable := [parameter for parameter in parameters if parameter.requires_grad])
    ]
    if not groups:
        raise InputError("optimizer: no parameter requires a gradient")
    try:
        return optimizer(groups, lr=lr, **settings)
    except (ValueError, TypeError) as error:  # The constructors check their arguments.
        raise InputError(f"optimizer: {error}") from error


def _check_rates(settings: Mapping[str, Any], path: str) -> None:
    """Refuse a setting of `NOT_NEGATIVE` that is negative or no number; ``path`` is where the settings are given."""
    for name in NOT_NEGATIVE:
        value = settings.get(name, 0)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not value >= 0:
            raise InputError(f"{path}.{name}={value}: must be a number, 0 or more")
