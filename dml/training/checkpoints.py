import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import CheckpointIO
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint, ModelCheckpoint
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn

from dml.models.recurrent import RecurrentModel
from dml.ops.errors import InputError
from dml.ops.files import replacing
from dml.training.history import History


class AtomicCheckpointIO(CheckpointIO):
    """Writes a checkpoint beside its place and renames it: whenever the process dies, a whole one stands there.

    A state with NaN or infinite weights is refused, so that it never replaces a good one. Loading unpickles
    tensors and plain values only.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:  # noqa: ARG002
        """Writes ``checkpoint`` to ``path``.

        Raises:
            InputError: if a weight is NaN or infinite.
        """
        bad = [name for name, value in checkpoint["state_dict"].items() if not _finite(value)]
        if bad:
            raise InputError(
                f"step {checkpoint['global_step']}: {len(bad)} weights became NaN or infinite, such as {bad[0]}; "
                f"{path} keeps its last good state, a lower optimizer.lr may help"
            )
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())

    def load_checkpoint(self, path: Any, map_location: Any | None = None, weights_only: bool | None = None) -> Any:  # noqa: ARG002
        """The checkpoint at ``path``, on CPU."""
        return read_checkpoint(path)

    def remove_checkpoint(self, path: Any) -> None:
        """Deletes ``path``."""
        Path(path).unlink(missing_ok=True)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A run's checkpoint, on CPU.

    Raises:
        InputError: if there is none, or it can't be read.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"checkpoint={path}: no such file; a run keeps checkpoints/best.ckpt and last.ckpt")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever its unpickler meets in a broken file
        raise InputError(f"checkpoint={path}: cannot be read ({type(error).__name__})") from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint or "run" not in checkpoint:
        raise InputError(f"checkpoint={path}: not a checkpoint of a dml run")
    return checkpoint


@dataclass(frozen=True)
class Reached:
    """How far a run of one or several stages has got.

    Args:
        stage: its stage's name, "" for the only one.
        first_step: optimizer steps of the stages before it.
        step: its own.
    """

    stage: str
    first_step: int
    step: int

    @classmethod
    def of(cls, path: Path) -> "Reached":
        """Where a run's checkpoint was written."""
        checkpoint = read_checkpoint(path)
        run = checkpoint["run"]
        return cls(run.get("stage", ""), run.get("first_step", 0), checkpoint["global_step"])

    @property
    def all_steps(self) -> int:
        """Steps of the run."""
        return self.first_step + self.step

    def described(self, run: Mapping[str, Any]) -> dict[str, int]:
        """How far a test says that its checkpoint got: epochs are those of the stage, steps those of the run.

        Args:
            run: what the checkpoint says of its run: "batches_per_epoch" and "batches_per_step". Checkpoints of before
                these lack them, and the epoch is left out.
        """
        if "batches_per_epoch" not in run:
            return {"step": self.all_steps}
        epoch = self.step * run["batches_per_step"] // run["batches_per_epoch"]
        return {"epoch": epoch, "step": self.all_steps}

    @property
    def place(self) -> dict[str, Any]:
        """What `LastCheckpoint` puts into the checkpoints of the stage."""
        return {"stage": self.stage, "first_step": self.first_step}


def load_model(model: nn.Module, path: Path) -> int:
    """Loads the model of a run's checkpoint -> the optimizer step that it was written at.

    Raises:
        InputError: if the checkpoint belongs to another model.
    """
    checkpoint = read_checkpoint(path)
    _load(model, _model_state(checkpoint), path)
    return int(checkpoint["global_step"])


def begin_from(model: nn.Module, path: Path) -> None:
    """Gives a model the weights of a checkpoint to begin with; a recurrent model takes those of its network alone, too.

    Raises:
        InputError: if the checkpoint belongs to another model.
    """
    state = _model_state(read_checkpoint(path))
    if isinstance(model, RecurrentModel) and not any(key.startswith("recurrent.") for key in state):
        _load(model.cnn, state, path)
        _load(model.pretrained, state, path)
    else:
        _load(model, state, path)


def _model_state(checkpoint: dict[str, Any]) -> dict[str, Any]:
    prefix = "model."
    return {key.removeprefix(prefix): v for key, v in checkpoint["state_dict"].items() if key.startswith(prefix)}


def _load(model: nn.Module, state: dict[str, Any], path: Path) -> None:
    own = model.state_dict()
    wrong = [key for key in state.keys() | own.keys() if key not in own or key not in state]
    wrong += [key for key in state.keys() & own.keys() if state[key].shape != own[key].shape]
    if wrong:
        raise InputError(
            f"checkpoint={path}: of another model: {len(wrong)} of its weights don't fit, such as {min(wrong)}; "
            "give the model.* options that it was trained with"
        )
    model.load_state_dict(state)


class BestCheckpoint(ModelCheckpoint):
    """Lightning's, which on being resumed forgets the score that it saved last: a resumed run's file would differ."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What Lightning restores, and that score."""
        super().load_state_dict(state_dict)
        self.current_score = state_dict["current_score"]


class RunEnder(Callback):
    """A callback that may end a run for good, its later stages too, and decides anew when the run is resumed.

    Attributes:
        has_ended_run: whether it has.
    """

    has_ended_run = False


class LastCheckpoint(Checkpoint):
    """Writes ``last.ckpt`` every n steps, after each validation and where the training ends, after whole steps only.

    Where a validation is due it waits for its end, so that a resumed run neither repeats nor loses one. Between the
    batches of one step (``accumulate_grad_batches``) there are gradients that no checkpoint holds: a training that is
    to end there ends after the step.

    A training that ended before ``max_steps``, by ``max_time`` or an early stop, ends there again if the run is
    resumed with the same configuration.

    Args:
        path: the file.
        every_n_steps: optimizer steps between two writes.
        run: plain values that rebuild the run; they are put into every checkpoint as "run".
    """

    def __init__(self, path: Path, every_n_steps: int, run: dict[str, Any]) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self.run = run
        self._should_stop = False
        self._ended_with: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Ends a training that had ended early."""
        if self._ended_with is not None and self._ended_with == self.run.get("config"):
            trainer.should_stop = True

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Writes the checkpoint if it is due and no validation is."""
        is_whole_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        self._should_stop |= trainer.should_stop
        trainer.should_stop = self._should_stop and is_whole_step
        if not is_whole_step:
            return
        is_last = trainer.should_stop or trainer.global_step == trainer.max_steps
        every = trainer.val_check_batch
        validates = every is not None and ((batch_idx + 1) % every == 0 or trainer.should_stop)
        if (is_last or trainer.global_step % self.every_n_steps == 0) and not (trainer.enable_validation and validates):
            for history in (logger for logger in trainer.loggers if isinstance(logger, History)):
                history.write_ahead(trainer)
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Writes the checkpoint."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        is_decided_anew = any(isinstance(callback, RunEnder) and callback.has_ended_run for callback in callbacks)
        if trainer.should_stop and trainer.global_step < trainer.max_steps and not is_decided_anew:
            self._ended_with = self.run.get("config")
        trainer.save_checkpoint(self.path)

    def state_dict(self) -> dict[str, Any]:
        """The configuration with which the training ended early, if it did."""
        return {"ended_with": self._ended_with}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave."""
        self._ended_with = state_dict["ended_with"]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Adds the description of the run."""
        checkpoint["run"] = self.run


def _finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(torch.isfinite(value).all())
