"""The reading of checkpoints, without Lightning, and the frozen weights that they may lack."""

import json
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dml.models.adapters import plain_name
from dml.models.backbone import Backbone
from dml.models.recurrent import AnyModel, RecurrentModel
from dml.models.weights import hash_tensors
from dml.runtime.configuration import check_parts
from dml.runtime.errors import InputError
from dml.runtime.reading import DamageError, check_plain, check_zip
from dml.runtime.run_folder import RunFolder, newest_runs
from dml.runtime.text import printable

FORMAT = 1
"""The version of what a checkpoint holds; one of another version isn't read."""
FROZEN = "frozen"
"""The entry of a checkpoint about the weights that it lacks."""
INTERPOLATION = "interpolation"
"""The entry of a checkpoint that `dml.run.interpolation` chose: the share of the last weights, and their step."""
STATES = ("state_dict", "current_model_state")
"""The entries of a checkpoint that hold weights; the second is in those of runs with ``ema``."""
PREFIX = "model."
"""What the names of the model's weights begin with in a checkpoint."""

logger = logging.getLogger(__name__)


def read_checkpoint(path: str | Path, *, lazily: bool = False) -> dict[str, Any]:
    """Read a checkpoint of a run, and compare its content with its checksums; its tensors are on the CPU.

    A file that is missing, damaged or no checkpoint of a run raises InputError. With ``lazily`` the tensors stay on the
    disk until they are used.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"checkpoint={path}: no such file; a run keeps checkpoints/best.ckpt and last.ckpt")
    try:
        check_zip(path)  # torch.load doesn't look at the checksums
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    except Exception as error:  # The unpickler can raise any exception for a damaged file.
        reason = str(error) if isinstance(error, DamageError) else type(error).__name__
        raise InputError(f"checkpoint={path}: damaged, or no checkpoint ({reason}); {_name_other(path)}") from error
    if not _is_of_run(checkpoint):
        raise InputError(f"checkpoint={path}: not a checkpoint of a dml run in format {FORMAT}, which dml reads")
    return checkpoint


def _name_other(path: Path) -> str:
    """Name the other checkpoint of a run, if there is one, with what it can be used for."""
    other = path.with_name("last.ckpt" if path.name == "best.ckpt" else "best.ckpt")
    if path.suffix != ".ckpt" or not other.is_file():
        return "a run keeps checkpoints/best.ckpt and last.ckpt"
    test, beginning = (shlex.quote(f"{key}={other}") for key in ("checkpoint", "training.init"))
    line = f"{test} tests the other one, {beginning} begins a new run with its weights"
    resuming = shlex.quote(f"resume={path.parents[1]}")
    return line if other.name == "best.ckpt" else f"{line}; without this file, {resuming} goes on with the run"


def _is_of_run(checkpoint: Any) -> bool:
    """Tell whether the content of a file has the entries of a run's checkpoint, which may be a stranger's."""
    try:
        run = check_plain(checkpoint["run"])
        check_parts(run.get("config", {}))
        is_described = all(isinstance(override, str) for override in run.get("overrides", ()))
        is_whole = isinstance(checkpoint["state_dict"], Mapping) and type(checkpoint["global_step"]) is int
        return is_described and is_whole and checkpoint["format"] == FORMAT
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


@dataclass(frozen=True)
class TrainingProgress:
    """The stage and the step at which a run is, or at which a checkpoint was written."""

    stage: str  # "" in a run of one stage
    first_step: int  # the optimizer steps of all earlier stages
    step: int  # those of this stage
    history_checksum: str = ""  # `History.checksum` at that step; "" if the checkpoint has none
    share: float = 1.0  # of the weights of that step in those of the checkpoint, see `dml.run.interpolation`
    epoch: int | None = None  # of this stage; None in a checkpoint without the length of an epoch

    @classmethod
    def read(cls, path: Path) -> "TrainingProgress":
        """Read the progress from the checkpoint at a path."""
        return cls.from_checkpoint(read_checkpoint(path, lazily=True))

    @classmethod
    def from_checkpoint(cls, checkpoint: Mapping[str, Any]) -> "TrainingProgress":
        """Return the progress of the run that wrote a checkpoint."""
        run, share = checkpoint["run"], checkpoint.get(INTERPOLATION, {}).get("share", 1.0)
        first_step, step = run.get("first_step", 0), checkpoint["global_step"]
        epoch = step * run["batches_per_step"] // run["batches_per_epoch"] if "batches_per_epoch" in run else None
        return cls(run.get("stage", ""), first_step, step, checkpoint.get("history", ""), share, epoch)

    @property
    def total_steps(self) -> int:
        """The number of optimizer steps of the run, with those of all earlier stages."""
        return self.first_step + self.step

    def describe(self) -> dict[str, float]:
        """Return the epoch of the stage, the step of the run and the share of its weights below 1, for metrics.json."""
        epoch = {} if self.epoch is None else {"epoch": self.epoch}
        return epoch | {"step": self.total_steps} | ({} if self.share == 1 else {INTERPOLATION: self.share})


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that the test of a run took, or would take; one without any raises InputError.

    A folder that is no run stands for the newest run with a checkpoint anywhere below it, which a warning names.
    """
    folder = RunFolder(path.parent if path.name == "checkpoints" else path)
    if not folder.last_checkpoint.parent.is_dir():
        folder = next((newest for newest in newest_runs(path) if newest.last_checkpoint.exists()), folder)
    if folder.path not in (path, path.parent):
        logger.warning("%s: the newest run in it is taken, %s", printable(path), printable(folder.path))
    last, best = folder.last_checkpoint, folder.best_checkpoint
    if not last.exists() and not best.exists():
        raise InputError(f"{printable(path)}: neither a run with checkpoints, nor a folder of such runs")
    if folder.is_finished:
        selection = folder.metrics().get("selection")
    else:
        selection = folder.config.get("evaluation", {}).get("selection") if folder.has_configuration else None
    if not best.exists() or selection == "last":
        return last
    if last.exists() and TrainingProgress.read(best).stage != TrainingProgress.read(last).stage:
        return last  # the best one is of an earlier stage
    return best


def load_model(model: AnyModel, path: Path) -> None:
    """Load the weights of a checkpoint, and the heads that its training chose, into its model.

    A checkpoint of another model, or one that was trained with other frozen weights, raises InputError.
    """
    checkpoint = fill_in(read_checkpoint(path), model, path)
    load_state(model, _select_model_state(checkpoint), path)
    if "chosen_heads" in checkpoint:
        model.chosen_heads = tuple(checkpoint["chosen_heads"])


def load_initial_weights(model: nn.Module, path: Path) -> None:
    """Load the weights that a training begins with from a checkpoint.

    A `RecurrentModel` also accepts the weights of an `EmbeddingModel`, which both of its networks get. A model with
    updates (`dml.models.adapters.LoRA`) also accepts the weights of one without them.
    """
    checkpoint = read_checkpoint(path)
    is_recurrent = any(name.startswith(f"{PREFIX}recurrent.") for name in checkpoint["state_dict"])
    filled = model.cnn if isinstance(model, RecurrentModel) and not is_recurrent else model
    load_initial_state(model, _select_model_state(fill_in(checkpoint, filled, path)), path)


def load_initial_state(model: nn.Module, state: dict[str, Any], path: Path) -> None:
    """Load weights as `load_initial_weights` does."""
    networks: list[nn.Module] = [model]
    if isinstance(model, RecurrentModel) and not any(name.startswith("recurrent.") for name in state):
        networks = [model.cnn, model.pretrained]
    state = _add_updates(state, networks[0])
    for network in networks:
        load_state(network, state, path)


def _add_updates(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Give weights of a plain network the names that they have in a model with updates, and add its updates."""
    if any(".lora_A." in name for name in state):
        return state
    expected = model.state_dict()
    names = {plain_name(name): name for name in expected}
    updates = {name: value for name, value in expected.items() if ".lora_" in name}
    return updates | {names.get(name, name): value for name, value in state.items()}


def _select_model_state(checkpoint: dict[str, Any]) -> dict[str, Any]:
    weights = checkpoint["state_dict"]
    return {name.removeprefix(PREFIX): value for name, value in weights.items() if name.startswith(PREFIX)}


def load_state(model: nn.Module, state: dict[str, Any], path: Path) -> None:
    """Load weights into a model, after a comparison of their names and shapes."""
    expected = model.state_dict()
    misfits = [
        name
        for name in state.keys() | expected.keys()
        if name not in expected or name not in state or state[name].shape != expected[name].shape
    ]
    if misfits:
        raise InputError(
            f"checkpoint={path}: of another model: {len(misfits)} of its weights don't fit, such as {min(misfits)}; "
            "give the model.* options that it was trained with"
        )
    model.load_state_dict(state)


class FrozenWeights:
    """The weights that a training with an adapter leaves as they are, and that its checkpoints therefore don't hold.

    A checkpoint leaves out a frozen parameter or buffer if building the model again gives the same value, and the value
    is still that one. So random weights are in it, and all weights of a run that began with those of another run
    (``training.init``). The entry "frozen" of a checkpoint has the names of what it lacks, and a fingerprint.

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
        hashes = {
            name: expected
            for name, expected in sorted(self._hashes.items())
            if all(name in state and _hash(state[name]) == expected for state in states.values())
        }
        if not hashes:
            return dict(checkpoint)
        slim = {
            entry: {name: value for name, value in state.items() if name not in hashes}
            for entry, state in states.items()
        }
        return {**checkpoint, **slim, FROZEN: {"names": [*hashes], "fingerprint": _join_hashes(hashes)}}


def _find_frozen(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that no step changes, by name."""
    changing = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            changing |= {prefix + name for name, _ in module.named_buffers(recurse=False)}
        if isinstance(module, Backbone):  # the last digits of what was fitted to an image's size depend on the machine
            changing |= {prefix + name for name in module.fitted_names}
    return {name: value for name, value in model.state_dict().items() if name not in changing}


def _hash(value: Tensor) -> str:
    return hash_tensors([("", value)])


def _join_hashes(hashes: Mapping[str, str]) -> str:
    return sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]


def lacks_weights(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether the model of a checkpoint has to be built with the weights that its training began with."""
    return FROZEN in checkpoint


def fill_in(checkpoint: Mapping[str, Any], model: nn.Module, path: str | Path) -> dict[str, Any]:
    """Return a checkpoint with the frozen weights that it lacks, taken from its model; others raise InputError."""
    if not lacks_weights(checkpoint):
        return dict(checkpoint)
    names, expected = checkpoint[FROZEN]["names"], checkpoint[FROZEN]["fingerprint"]
    state = {PREFIX + name: value for name, value in model.state_dict().items()}
    state |= {plain_name(name): value for name, value in state.items()}
    fingerprint = "none, as it is another one"
    if all(name in state for name in names):
        fingerprint = _join_hashes({name: _hash(state[name]) for name in names})
    if fingerprint != expected:
        raise InputError(
            f"checkpoint={path}: trained with frozen weights of fingerprint {expected}, but the model gives "
            f"{fingerprint}; give the model.* options, and model.backbone.weights, that it was trained with"
        )
    frozen = {name: state[name].detach().cpu() for name in names}
    return {**checkpoint, **{entry: {**checkpoint[entry], **frozen} for entry in STATES if entry in checkpoint}}
