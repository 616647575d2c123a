import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dml.runtime.errors import InputError, check_number, suggest

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
    no_decay: Sequence[str] = (),
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
        no_decay: kinds of parameters without weight decay: "norm", of normalization layers, and "bias", of the others.
        **settings: settings of all groups, such as weight_decay and momentum.
    """
    of_all = {"lr": lr, "heads_lr_multiplier": heads_lr_multiplier, **settings}
    for key, values in (("optimizer", of_all), ("optimizer.loss", loss or {})):
        for name in ("lr", "heads_lr_multiplier", "weight_decay", "momentum"):
            check_number(f"{key}.{name}", values.get(name, 0), least=0)  # PyTorch's error would lack the key
    if not 0 < layer_decay <= 1:
        raise InputError(f"optimizer.layer_decay={layer_decay}: must be above 0 and at most 1")
    settings_by_group: dict[str, Mapping[str, Any]]
    settings_by_group = {"backbone": {}, "heads": {"lr": lr * heads_lr_multiplier}, "loss": loss or {}}
    groups = [
        {"name": name, "params": trainable, **settings_by_group[name]}
        for name, parameters in parameter_groups.items()
        if (name != "backbone" or layer_decay == 1)
        and (trainable := [parameter for parameter in parameters if parameter.requires_grad])
    ]
    if layer_decay != 1:
        groups = _decay_layers(parameter_groups.get("backbone", []), lr, layer_decay) + groups
    if no_decay:
        groups = _split_by_decay(groups, parameter_groups, no_decay)
    try:
        made = optimizer(groups, lr=lr, **settings)
    except (ValueError, TypeError) as error:  # The constructors check their arguments.
        raise InputError(f"optimizer: {error}") from error
    known = {*made.defaults, "use_fallback"}  # the last one is of timm's Muon, which has no default of it
    if unknown := sorted(set(loss or {}) - known):  # PyTorch ignores them
        name = unknown[0]
        raise InputError(f"optimizer.loss.{name}: no setting of {type(made).__name__}{suggest(name, known)}")
    return made


def _split_by_decay(
    groups: list[dict[str, Any]], parameter_groups: ParameterGroups, no_decay: Sequence[str]
) -> list[dict[str, Any]]:
    """Give the parameters of some kinds groups of their own, without weight decay."""
    if unknown := {*no_decay} - {"norm", "bias"}:
        raise InputError(f"optimizer.no_decay: {', '.join(sorted(unknown))}; norm and bias are what it may list")
    exempt = {
        parameter
        for parameters in parameter_groups.values()
        for parameter, kind in zip(parameters, getattr(parameters, "kinds", ()), strict=False)
        if kind in no_decay
    }
    split = []
    for group in groups:
        decayed = [parameter for parameter in group["params"] if parameter not in exempt]
        others = [parameter for parameter in group["params"] if parameter in exempt]
        split += [group | {"params": decayed}] if decayed else []
        split += (
            [group | {"name": f"{group['name']}.no_decay", "params": others, "weight_decay": 0.0}] if others else []
        )
    return split


def _decay_layers(parameters: Sequence[nn.Parameter], lr: float, layer_decay: float) -> list[dict[str, Any]]:
    numbers: Sequence[int] = getattr(parameters, "layers", ())
    if len(numbers) != len(parameters):
        raise InputError(
            f"optimizer.layer_decay={layer_decay}: the order of this network's layers is unknown; give 1, or take a "
            "network of timm"
        )
    trained = [(layer, p) for layer, p in zip(numbers, parameters, strict=True) if p.requires_grad]
    layers = sorted({layer for layer, _ in trained})
    return [
        {
            "name": f"backbone.{layer}",
            "params": [parameter for other, parameter in trained if other == layer],
            "lr": lr * layer_decay ** (layers[-1] - layer),
        }
        for layer in layers
    ]


def list_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each parameter group of an optimizer, such as lr and weight_decay."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def change_settings(checkpoint: dict[str, Any], optimizer: Optimizer) -> None:
    """Change those settings in a checkpoint, in place, that the optimizer of a resumed run has new values for.

    Settings that are the same as before stay as they are stored: a schedule or a callback may have moved them. The
    entry "optimizer_settings" has those that the optimizer was made with.
    """
    groups = checkpoint["optimizer_states"][0]["param_groups"]
    for group, old, new in zip(groups, checkpoint["optimizer_settings"], list_settings(optimizer), strict=True):
        changed = {name: value for name, value in new.items() if name in group and old.get(name) != value}
        group |= changed
        if "lr" in changed and "initial_lr" in group:  # what a schedule begins with
            group["initial_lr"] = changed["lr"]


@dataclass(frozen=True)
class SchedulePace:
    """Counts the intervals after each of which the schedule of the learning rates moves; the warm-up has none."""

    interval: str = "step"  # an optimizer step, or "epoch", an epoch of the sampler
    warmup_steps: int = 0  # optimizer steps at the beginning of the run that the schedule doesn't count
    batches_per_step: int = 1  # whose gradients make one optimizer step
    batches_per_epoch: int = 1

    def count_intervals(self, step: int) -> int:
        """Count the intervals that have ended after ``step`` optimizer steps of the run."""
        steps = max(0, step - self.warmup_steps)
        return steps if self.interval == "step" else self.count_epochs(steps)

    def count_epochs(self, step: int) -> int:
        """Count the sampler's epochs that have ended after ``step`` optimizer steps."""
        return step * self.batches_per_step // self.batches_per_epoch

    def schedule_length(self, max_steps: int) -> int:
        """Return the number of intervals of a schedule that ends with a run of ``max_steps`` optimizer steps."""
        if max_steps <= self.warmup_steps:
            raise InputError(
                f"scheduler.warmup_steps={self.warmup_steps}: leaves nothing of the run's {max_steps} steps for the "
                "schedule; scheduler=constant has none"
            )
        return self.count_intervals(max_steps - 1) + 1


def rebuild_schedule(make: Callable[[Optimizer], LRScheduler], optimizer: Optimizer, intervals: int) -> LRScheduler:
    """Make a new schedule in place of an earlier one of the optimizer, and move it to where so many intervals ended."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"]
    schedule = make(optimizer)
    with warnings.catch_warnings():  # PyTorch warns that the optimizer took no step: an earlier process took them.
        warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step")
        for _ in range(intervals):
            schedule.step()
    return schedule
