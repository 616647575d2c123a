"""The weights of a model that a training with an adapter leaves as they are, and that its checkpoints don't hold.

A checkpoint leaves out a frozen parameter or buffer if two things are true: building the model again gives the same
value, and the value is still that one. So random weights are in it, and all weights of a run that began with those of
another run (``init``). The entry "frozen" of a checkpoint has the names of what it lacks, and a fingerprint.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dml.models.adapters import plain_name
from dml.models.backbone import Backbone
from dml.models.weights import hash_tensors
from dml.runtime.errors import InputError

ENTRY = "frozen"
"""The entry of a checkpoint about the weights that it lacks."""

STATES = ("state_dict", "current_model_state")
"""The entries of a checkpoint that hold weights; the second is in those of runs with ``ema``."""

PREFIX = "model."
"""What the names of the model's weights begin with in a checkpoint."""


class FrozenWeights:
    """The frozen weights that building a model again gives.

    Args:
        model: model as it was built, before other weights are loaded.
        rebuilt: a copy of the model, built again with other random numbers.
    """

    def __init__(self, model: nn.Module, rebuilt: nn.Module) -> None:
        again = rebuilt.state_dict()
        self._hashes = {
            PREFIX + name: _hash(value)
            for name, value in _find_frozen(model).items()
            if name in again and torch.equal(value, again[name])
        }

    def leave_out(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checkpoint without the frozen weights that are as they were built."""
        states = {entry: checkpoint[entry] for entry in STATES if entry in checkpoint}
        names = [
            name
            for name, expected in sorted(self._hashes.items())
            if all(name in state and _hash(state[name]) == expected for state in states.values())
        ]
        if not names:
            return dict(checkpoint)
        left_out = set(names)
        slim = {
            entry: {name: value for name, value in state.items() if name not in left_out}
            for entry, state in states.items()
        }
        fingerprint = _join({name: self._hashes[name] for name in names})
        return {**checkpoint, **slim, ENTRY: {"names": names, "fingerprint": fingerprint}}


def _find_frozen(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that no step changes, by name.

    What was fitted to the size of the images isn't among them: its last digits depend on the machine.
    """
    changing = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            changing |= {prefix + name for name, _ in module.named_buffers(recurse=False)}
        if isinstance(module, Backbone):
            changing |= {prefix + name for name in module.fitted_names}
    return {name: value for name, value in model.state_dict().items() if name not in changing}


def _hash(value: Tensor) -> str:
    return hash_tensors([("", value)])


def _join(hashes: Mapping[str, str]) -> str:
    return sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]


def lacks_weights(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether the model of a checkpoint has to be built with the weights that its training began with."""
    return ENTRY in checkpoint


def fill_in(checkpoint: Mapping[str, Any], model: nn.Module, path: str | Path) -> dict[str, Any]:
    """Return a checkpoint with the frozen weights that it lacks, taken from its model.

    Raises:
        InputError: if the model's weights aren't those that the checkpoint was trained with.
    """
    if not lacks_weights(checkpoint):
        return dict(checkpoint)
    names, expected = checkpoint[ENTRY]["names"], checkpoint[ENTRY]["fingerprint"]
    own_state = {PREFIX + name: value for name, value in model.state_dict().items()}
    own_state |= {plain_name(name): value for name, value in own_state.items()}
    missing = [name for name in names if name not in own_state]
    if missing:
        raise InputError(
            f"checkpoint={path}: of another model: it lacks {len(missing)} frozen weights that the model hasn't, such "
            f"as {missing[0].removeprefix(PREFIX)}; give the model.* options that it was trained with"
        )
    fingerprint = _join({name: _hash(own_state[name]) for name in names})
    if fingerprint != expected:
        raise InputError(
            f"checkpoint={path}: trained with frozen weights of fingerprint {expected}, but model.backbone.weights "
            f"gives {fingerprint}; give the weights that it was trained with"
        )
    frozen = {name: own_state[name].detach().cpu() for name in names}
    return {**checkpoint, **{entry: {**checkpoint[entry], **frozen} for entry in STATES if entry in checkpoint}}
