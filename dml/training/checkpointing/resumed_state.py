"""A check that the state in a checkpoint is that of the training which goes on with it."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dml.losses.csl import CSLLoss
from dml.ops.errors import InputError

REMEDY = "training.init=CHECKPOINT begins a new run with its weights"


def check_resumed_state(checkpoint: Mapping[str, Any], learner: nn.Module, optimizer: Optimizer) -> None:
    """Refuse a checkpoint of other losses, trained parameters or another optimizer, which PyTorch couldn't load.

    Args:
        checkpoint: contents of the checkpoint.
        learner: the model with its losses.
        optimizer: the optimizer as the resumed run makes it.

    Raises:
        InputError: if the checkpoint is of another training.
    """
    stored_state, new_state = checkpoint["state_dict"], learner.state_dict()
    if differing := sorted(new_state.keys() ^ stored_state.keys()):
        name = differing[0]
        verb = "lacks" if name in new_state else "has"
        raise InputError(f"resume: the run was trained with another loss, its checkpoint {verb} {name}; {REMEDY}")
    # the one tensor that takes the shape of a checkpoint's
    adapting = {f"{name}.hierarchy" for name, module in learner.named_modules() if isinstance(module, CSLLoss)}
    if resized := [name for name in new_state.keys() - adapting if new_state[name].shape != stored_state[name].shape]:
        name = min(resized)
        shapes = [tuple(values[name].shape) for values in (stored_state, new_state)]
        raise InputError(f"resume: {name} had the shape {shapes[0]} and has {shapes[1]} now; {REMEDY}")
    kind = type(optimizer).__name__
    if (before := checkpoint.get("optimizer_class", kind)) != kind:
        raise InputError(f"optimizer.optimizer={kind}: the run was trained with {before}; {REMEDY}")
    sizes = [
        [len(group["params"]) for group in groups]
        for groups in (checkpoint["optimizer_states"][0]["param_groups"], optimizer.param_groups)
    ]
    if sizes[0] != sizes[1]:
        before, now = (f"{sum(numbers)} in {len(numbers)} groups" for numbers in sizes)
        raise InputError(f"resume: the run trained other parameters, {before}, now {now}; {REMEDY}")
