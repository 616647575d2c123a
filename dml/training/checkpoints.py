import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import CheckpointIO
from torch import Tensor, nn

from dml.models.recurrent import RecurrentModel
from dml.ops.checksums import DamageError, check_zip, is_zip
from dml.ops.errors import InputError
from dml.ops.files import replacing


class AtomicCheckpointIO(CheckpointIO):
    """Reads checkpoints, and writes them so that the path always has a complete one, even if the process is killed.

    A checkpoint is written to a temporary file, which is then renamed. Weights that are NaN or infinite raise an error,
    so that they never replace good ones. Reading unpickles tensors and plain values only.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:  # noqa: ARG002
        """Write a checkpoint to a path.

        Raises:
            InputError: if a weight is NaN or infinite.
        """
        names = [name for name, value in checkpoint["state_dict"].items() if not _is_finite(value)]
        if names:
            raise InputError(
                f"step {checkpoint['global_step']}: {len(names)} weights became NaN or infinite, such as {names[0]}; "
                f"{path} keeps its last good state, a lower optimizer.lr may help"
            )
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())

    def load_checkpoint(self, path: Any, map_location: Any | None = None, weights_only: bool | None = None) -> Any:  # noqa: ARG002
        """Read the checkpoint at a path; its tensors are on the CPU."""
        return read_checkpoint(path)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete the checkpoint at a path."""
        Path(path).unlink(missing_ok=True)


def read_checkpoint(path: str | Path, *, lazily: bool = False) -> dict[str, Any]:
    """Read a checkpoint of a run, and compare its content with its checksums; its tensors are on the CPU.

    Args:
        path: path of the checkpoint.
        lazily: whether the tensors stay on the disk until they are used.

    Raises:
        InputError: if the file doesn't exist, can't be read, is damaged or is no checkpoint of a run.
    """
    path = Path(path)
    if path.is_dir():
        file = path / ("best.ckpt" if path.name == "checkpoints" else "checkpoints/best.ckpt")
        remedy = f"checkpoint={file} is in it" if file.is_file() else "a run keeps checkpoints/best.ckpt and last.ckpt"
        raise InputError(f"checkpoint={path}: a folder, not a file; {remedy}")
    if not path.is_file():
        raise InputError(f"checkpoint={path}: no such file; a run keeps checkpoints/best.ckpt and last.ckpt")
    if not is_zip(path):
        raise InputError(f"checkpoint={path}: cannot be read (it doesn't begin as a checkpoint does); {_remedy(path)}")
    if damage := _describe_damage(path):
        raise InputError(f"checkpoint={path}: damaged ({damage}); {_remedy(path)}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    except Exception as error:  # The unpickler can raise any exception for a damaged file.
        raise InputError(f"checkpoint={path}: cannot be read ({type(error).__name__})") from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint or "run" not in checkpoint:
        raise InputError(f"checkpoint={path}: not a checkpoint of a dml run")
    return checkpoint


def _describe_damage(path: Path) -> str:
    """Compare a checkpoint's file with its checksums -> a description of the damage; "" if there is none."""
    stat = path.stat()
    return _check_file(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _check_file(path: Path, inode: int, modified: int, size: int) -> str:  # noqa: ARG001
    """Do the work of `_describe_damage`; the cache spares reading a file again unless it has changed."""
    try:
        check_zip(path)
    except DamageError as error:
        return str(error)
    return ""


def _remedy(path: Path) -> str:
    """Describe what a user can do if a checkpoint can't be read: the run's other checkpoint may be undamaged."""
    other = path.with_name("last.ckpt" if path.name == "best.ckpt" else "best.ckpt")
    if path == other or not other.is_file() or _describe_damage(other):
        return "there is no other one beside it that is whole; a new run is needed, or a copy of this file"
    line = f"{other} is whole: checkpoint={other} tests it, init={other} begins a new run with its weights"
    if other.name == "last.ckpt":
        line += f", resume={path.parents[1]} evaluation.selection=last goes on with its run"
    return line


@dataclass(frozen=True)
class TrainingProgress:
    """The stage and the step at which a run is, or at which a checkpoint was written.

    Args:
        stage: name of the stage; "" in a run of one stage.
        first_step: number of optimizer steps of all earlier stages.
        step: number of optimizer steps of this stage.
        history_checksum: value of `History.checksum` at that step; "" if the checkpoint has none.
    """

    stage: str
    first_step: int
    step: int
    history_checksum: str = ""

    @classmethod
    def read(cls, path: Path) -> "TrainingProgress":
        """Read the progress from the checkpoint at a path."""
        return cls.from_checkpoint(read_checkpoint(path, lazily=True))

    @classmethod
    def from_checkpoint(cls, checkpoint: Mapping[str, Any]) -> "TrainingProgress":
        """Return the progress of the run that wrote a checkpoint.

        Args:
            checkpoint: contents of the checkpoint.
        """
        run = checkpoint["run"]
        return cls(
            stage=run.get("stage", ""),
            first_step=run.get("first_step", 0),
            step=checkpoint["global_step"],
            history_checksum=checkpoint.get("history", ""),
        )

    @property
    def total_steps(self) -> int:
        """The number of optimizer steps of the run, with those of all earlier stages."""
        return self.first_step + self.step

    def describe(self, run: Mapping[str, Any]) -> dict[str, int]:
        """Return the epoch of the stage and the step of the run, for metrics.json.

        Args:
            run: entry "run" of the checkpoint, with "batches_per_epoch" and "batches_per_step". Old checkpoints lack
                these; then the epoch is missing.
        """
        if "batches_per_epoch" not in run:
            return {"step": self.total_steps}
        epoch = self.step * run["batches_per_step"] // run["batches_per_epoch"]
        return {"epoch": epoch, "step": self.total_steps}

    @property
    def stage_entries(self) -> dict[str, Any]:
        """The entries about the stage that its checkpoints hold below "run"."""
        return {"stage": self.stage, "first_step": self.first_step}


def load_model(model: nn.Module, path: Path) -> int:
    """Load the weights of a checkpoint into its model -> the optimizer step of the checkpoint.

    Raises:
        InputError: if the checkpoint belongs to another model.
    """
    checkpoint = read_checkpoint(path)
    load_state(model, _model_state(checkpoint), path)
    return int(checkpoint["global_step"])


def load_initial_weights(model: nn.Module, path: Path) -> None:
    """Load the weights that a training begins with from a checkpoint.

    A `RecurrentModel` also accepts the weights of an `EmbeddingModel`, which both of its networks get.

    Raises:
        InputError: if the checkpoint belongs to another model.
    """
    state = _model_state(read_checkpoint(path))
    if isinstance(model, RecurrentModel) and not any(key.startswith("recurrent.") for key in state):
        load_state(model.cnn, state, path)
        load_state(model.pretrained, state, path)
    else:
        load_state(model, state, path)


def _model_state(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the weights of the model, without those of the losses."""
    weights, prefix = checkpoint["state_dict"], "model."
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def load_state(model: nn.Module, state: dict[str, Any], path: Path) -> None:
    """Load weights into a model, after a comparison of their names and shapes.

    Args:
        model: model that gets the weights.
        state: weights by name.
        path: file that they come from, for the error line.

    Raises:
        InputError: if the weights belong to another model.
    """
    expected = model.state_dict()
    misfits = [name for name in state.keys() | expected.keys() if name not in expected or name not in state]
    misfits += [name for name in state.keys() & expected.keys() if state[name].shape != expected[name].shape]
    if misfits:
        raise InputError(
            f"checkpoint={path}: of another model: {len(misfits)} of its weights don't fit, such as {min(misfits)}; "
            "give the model.* options that it was trained with"
        )
    model.load_state_dict(state)


def _is_finite(value: Any) -> bool:
    """Return whether a value holds no NaN and no infinity; a value without real numbers holds none."""
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(torch.isfinite(value).all())
