"""What a run writes and validates: its first, last and best checkpoints, and validations before and after all steps."""

from collections.abc import Mapping
from math import inf, isnan
from pathlib import Path
from time import monotonic
from typing import Any, cast

import torch
from lightning_fabric.plugins import CheckpointIO
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn

from dml.evaluation.metric import full_metric_name
from dml.runtime import signals
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import console
from dml.training.checkpoints import FORMAT, FrozenWeights, fill_in, read_checkpoint
from dml.training.loggers import History


class AtomicCheckpointIO(CheckpointIO):
    """Reads checkpoints, and writes them so that the path always has a complete one, even if the process is killed.

    Weights that are NaN or infinite raise an error, so that they never replace good ones.

    ``model`` has the frozen weights that checkpoints lack; ``frozen`` are those that they needn't hold.
    """

    def __init__(self, model: nn.Module | None = None, frozen: FrozenWeights | None = None) -> None:
        self.model, self.frozen = model, frozen

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:  # noqa: ARG002
        """Write a checkpoint to a path."""
        if names := [
            name
            for name, value in checkpoint["state_dict"].items()
            if isinstance(value, Tensor) and value.is_floating_point() and not torch.isfinite(value).all()
        ]:
            raise InputError(
                f"step {checkpoint['global_step']}: {len(names)} weights became NaN or infinite, such as {names[0]}; "
                f"{path} keeps its last good state, a lower optimizer.lr may help"
            )
        checkpoint = {**checkpoint, "format": FORMAT}
        if self.frozen is not None:
            checkpoint = self.frozen.leave_out(checkpoint)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path), on_disk=True) as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Any, map_location: Any | None = None, weights_only: bool | None = None) -> Any:  # noqa: ARG002
        """Read the checkpoint at a path; its tensors are on the CPU."""
        checkpoint = read_checkpoint(path)
        return checkpoint if self.model is None else fill_in(checkpoint, self.model, path)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete the checkpoint at a path."""
        Path(path).unlink(missing_ok=True)


class LastCheckpoint(Checkpoint):
    """Write ``checkpoints/last.ckpt`` every n steps or seconds, after each validation and at the end of the training.

    It is written after whole steps only. If a validation follows the step, it is written after the validation, so that
    a resumed run neither repeats nor loses one. Between the batches of one step (``accumulate_grad_batches``) there
    are gradients that no checkpoint holds: a training that is to end there ends after the step.

    A training that ended before ``max_steps``, by ``max_time`` or an early stop, ends there again if the run is
    resumed with the same configuration. A training that a signal ended goes on.

    Args:
        every_n_steps: number of optimizer steps between two writes.
        every_n_seconds: seconds since the last write after which the next step writes; None for every_n_steps alone.
            Of several processes the first whose clock has run out decides.
    """

    def __init__(self, every_n_steps: int, every_n_seconds: float | None = None) -> None:
        self.every_n_steps = every_n_steps
        self.every_n_seconds = every_n_seconds
        self._last_write = monotonic()
        self._should_stop = self._is_stopped = False
        self._ended_with: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """End a training that had ended early."""
        self._last_write = monotonic()
        if self._ended_with is not None and self._ended_with == pl_module.run_description.get("config"):
            trainer.should_stop = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        """Give the loggers the step that the run is at: Lightning counts no earlier stages, and can lag by one."""
        steps = pl_module.run_description.get("first_step", 0) + trainer.global_step
        trainer.fit_loop.epoch_loop._batches_that_stepped = steps

    def on_train_batch_end(self, trainer: Trainer, _module: Any, _outputs: Any, _batch: Any, batch_idx: int) -> None:
        """Write the checkpoint if it is due, unless a validation follows."""
        is_whole_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        self._should_stop |= trainer.should_stop
        trainer.should_stop = self._should_stop and is_whole_step
        if not is_whole_step:
            return
        self._is_stopped, is_long_ago = self._ask_processes(trainer)
        ends_early = _ends_early(trainer)
        is_last = self._is_stopped or ends_early or trainer.global_step == trainer.max_steps
        interval = trainer.val_check_batch
        validates = interval is not None and ((batch_idx + 1) % interval == 0 or ends_early)
        is_due = is_last or trainer.global_step % self.every_n_steps == 0 or is_long_ago
        if is_due and not (trainer.enable_validation and validates):
            for history in _find_histories(trainer):
                history.write_ahead(trainer)
            self._save(trainer)

    def _ask_processes(self, trainer: Trainer) -> tuple[bool, bool]:
        """Return whether any process of the training has got a signal, and whether a last write is too long ago."""
        is_long_ago = self.every_n_seconds is not None and monotonic() - self._last_write >= self.every_n_seconds
        numbers = [signals.state.signum or 0, int(is_long_ago)]
        if trainer.world_size > 1:
            own = torch.tensor(numbers, device=trainer.strategy.root_device)
            numbers = cast(Tensor, trainer.strategy.reduce(own, reduce_op="max")).tolist()
        if numbers[0]:
            signals.request(numbers[0])
        return numbers[0] > 0, numbers[1] > 0

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the checkpoint, unless no step has been taken."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking and trainer.global_step:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        learner: Any = trainer.lightning_module
        description = learner.run_description
        if _ends_early(trainer) and trainer.global_step < trainer.max_steps:
            self._ended_with = description.get("config")
        trainer.save_checkpoint(RunFolder(trainer.default_root_dir).last_checkpoint)
        self._last_write = monotonic()
        if self._is_stopped or self._ask_processes(trainer)[0]:
            stage = f" of stage {name}" if (name := description.get("stage")) else ""
            signals.check(f"at step {trainer.global_step:,} of {trainer.max_steps:,}{stage}")

    def state_dict(self) -> dict[str, Any]:
        """Return the configuration with which the training ended early, if it did."""
        return {"ended_with": self._ended_with}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._ended_with = state_dict["ended_with"]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the description of the run, and the checksum of its history."""
        checkpoint["run"] = pl_module.run_description
        for history in _find_histories(trainer):
            checkpoint["history"] = history.checksum


def _find_histories(trainer: Trainer) -> list[History]:
    return [logger for logger in trainer.loggers if isinstance(logger, History)]


def _ends_early(trainer: Trainer) -> bool:
    """Return whether something asked the training to end, and it has taken the steps of ``trainer.min_steps``."""
    return bool(trainer.should_stop and trainer.fit_loop._can_stop_early)


class FirstCheckpoint(Callback):
    """Writes ``checkpoints/first.ckpt`` before the first step of a run, whose weights `dml.run.interpolation` mixes."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the checkpoint, unless the run has taken a step."""
        if not trainer.global_step and not pl_module.run_description.get("first_step"):
            trainer.save_checkpoint(RunFolder(trainer.default_root_dir).first_checkpoint)


class BestCheckpoint(Checkpoint):
    """Writes ``checkpoints/best.ckpt`` after each validation that is better than all before it.

    Unlike Lightning's `ModelCheckpoint` it knows a second metric, which decides between equal values of the first: on a
    small validation split several validations may find the same share of queries, even all.

    Args:
        monitor: name of a metric of a validation, without the name of the split: "level0/recall@1".
        mode: "max" if larger values of the metric are better, "min" if smaller ones are.
        tie_breaker: name of a metric that decides between equal values of ``monitor``, the larger the better; None
            keeps the earlier validation.
        patience: number of validations in a row, none of them the best, after which the training ends; None for no
            such end.
    """

    def __init__(
        self, monitor: str, mode: str = "max", tie_breaker: str | None = None, patience: int | None = None
    ) -> None:
        self.sign = 1.0 if mode == "max" else -1.0
        self.metric, self.tie_breaker = full_metric_name(monitor), tie_breaker and full_metric_name(tie_breaker)
        self.patience = patience
        self.best: list[float] | None = None  # what later validations have to exceed, see `_read_score`
        self._validations_since_best = 0

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the checkpoint if the validation is the best so far; end the training if it has long been another."""
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        score = self._read_score(trainer.callback_metrics, pl_module.validated_on)
        # all processes together write a checkpoint, or none
        if trainer.strategy.broadcast(self.best is None or score > self.best):
            self.best, self._validations_since_best = score, 0
            trainer.save_checkpoint(RunFolder(trainer.default_root_dir).best_checkpoint)
            return
        self._validations_since_best += 1
        may_end = max(1, trainer.min_steps or 0) <= trainer.global_step < trainer.max_steps
        if may_end and self.patience is not None and self._validations_since_best >= self.patience:
            trainer.should_stop = True
            if trainer.is_global_zero:
                console.print(
                    f"[bold]ended[/]    at step {trainer.global_step:,}: none of the last {self.patience:,} "
                    "validations was better than all before (checkpoints.patience)"
                )

    def _read_score(self, metrics: Mapping[str, Tensor], split: str) -> list[float]:
        """Return the monitored value, the larger the better, NaN the least of all, and that of the tie breaker."""
        value = self.sign * float(metrics[f"{split}/{self.metric}"])
        tie = float(metrics[f"{split}/{self.tie_breaker}"]) if self.tie_breaker else 0.0
        return [-inf if isnan(value) else value, -inf if isnan(tie) else tie]

    def state_dict(self) -> dict[str, Any]:
        """Return what the next validations are compared with."""
        return {"best": self.best, "validations_since_best": self._validations_since_best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.best, self._validations_since_best = state_dict["best"], state_dict["validations_since_best"]


class FirstValidation(Callback):
    """Validates before the first step, so that the best checkpoint can be the network as it was before the training.

    A training that makes the network worse for unseen classes then loses nothing. The metrics are those of step 0. A
    later stage goes on from weights that have been validated, and so does a resumed run.
    """

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Validate as Lightning does between two steps, if the run has validations and no step yet."""
        first_step = getattr(module, "run_description", {}).get("first_step", 0)
        if trainer.global_step or first_step or not trainer.enable_validation:
            return
        loop = trainer.fit_loop.epoch_loop
        loop._batches_that_stepped = -1  # loggers take it for the index of the last step
        trainer.validating = True
        loop.val_loop.run()
        trainer.training = True
        loop._batches_that_stepped = 0


class FinalValidation(Callback):
    """Validates and logs after the last step too, where the intervals of the trainer would end the run without.

    The last steps of a run thereby count when the best checkpoint is chosen, and a run that is shorter than the
    interval has one validation. A run with ``trainer.val_check_interval=null`` has none.
    """

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """End the training, before which Lightning logs and validates, once it has all its steps."""
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True
