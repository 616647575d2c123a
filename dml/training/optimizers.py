from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dml.ops.errors import InputError

Roles = dict[str, list[nn.Parameter]]
"""The trainable parameters by role: backbone, heads, loss."""


def optimizer_by_role(
    roles: Roles,
    *,
    optimizer: Callable[..., Optimizer],
    lr: float,
    heads_lr_multiplier: float = 10.0,
    loss: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Optimizer:
    """One optimizer over the parameter groups "backbone", "heads" and "loss".

    Args:
        roles: parameters by role; those that ask for no gradient are left out.
        optimizer: makes the optimizer from a list of groups.
        lr: the backbone's learning rate.
        heads_lr_multiplier: the new layers learn this many times as fast.
        loss: settings of the losses' own parameters (proxies), such as lr and weight_decay; what it leaves out
            is as for the backbone.
        **settings: of all groups, such as weight_decay and momentum.

    Raises:
        InputError: if nothing is left to train.
    """
    own: dict[str, Mapping[str, Any]] = {
        "backbone": {},
        "heads": {"lr": lr * heads_lr_multiplier},
        "loss": loss or {},
    }
    groups = [
        {"name": role, "params": trainable, **own[role]}
        for role, parameters in roles.items()
        if (trainable := [parameter for parameter in parameters if parameter.requires_grad])
    ]
    if not groups:
        raise InputError("optimizer: no parameter asks for a gradient")
    return optimizer(groups, lr=lr, **settings)
