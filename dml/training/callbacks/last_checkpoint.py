from time import monotonic
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.trainer.states import TrainerFn

from dml.ops.run_folders.run_folder import RunFolder
from dml.runtime import signals
from dml.training.history import History


class RunEnder(Callback):
    """Base class of callbacks that may end a run with all its stages, and decide anew when the run is resumed.

    Attributes:
        has_ended_run: whether the callback has ended the run.
    """

    has_ended_run = False


class LastCheckpoint(Checkpoint):
    """Write ``checkpoints/last.ckpt`` every n steps or seconds, after each validation and at the end of the training.

    It is written after whole steps only. If a validation follows the step, it is written after the validation, so that
    a resumed run neither repeats nor loses one. Between the batches of one step (``accumulate_grad_batches``) there
    are gradients that no checkpoint holds: a training that is to end there ends after the step.

    A training that ended before ``max_steps``, by ``max_time`` or an early stop, ends there again if the run is
    resumed with the same configuration. A training that a signal ended goes on.

    Every checkpoint holds `MetricLearner.run_description` as "run", and the checksum of the history as "history".

    Args:
        every_n_steps: number of optimizer steps between two writes.
        every_n_seconds: seconds since the last write after which the next step writes; None for every_n_steps alone.
            Of several processes the first decides, in steps whose metrics are logged: the others wait for its answer.
    """

    def __init__(self, every_n_steps: int, every_n_seconds: float | None = None) -> None:
        self.every_n_steps = every_n_steps
        self.every_n_seconds = every_n_seconds
        self._last_write = monotonic()
        self._should_stop = self._is_stopped = False
        self._ended_with: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a training that had ended early; from now on a signal ends the training after a whole step."""
        saved = f"the last checkpoint is of step {trainer.global_step:,}" if trainer.global_step else ""
        signals.state.checkpoint_note = saved or "there is no checkpoint of this training yet"
        signals.defer("stopping after this step")
        self._last_write = monotonic()
        if self._ended_with is not None and self._ended_with == _describe_run(pl_module).get("config"):
            trainer.should_stop = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Give the loggers the step that the training is at.

        Lightning's count lags by one if a training goes on from a checkpoint of its former last step, after whose
        validation the count was not yet taken.
        """
        steps = _describe_run(pl_module).get("first_step", 0) + trainer.global_step
        trainer.fit_loop.epoch_loop._batches_that_stepped = steps

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Write the checkpoint if it is due, unless a validation follows."""
        is_whole_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        self._should_stop |= trainer.should_stop
        trainer.should_stop = self._should_stop and is_whole_step
        if not is_whole_step:
            return
        self._is_stopped = _is_signaled(trainer)
        ends_early = _ends_early(trainer)
        is_last = self._is_stopped or ends_early or trainer.global_step == trainer.max_steps
        interval = trainer.val_check_batch
        validates = interval is not None and ((batch_idx + 1) % interval == 0 or ends_early)
        is_due = is_last or trainer.global_step % self.every_n_steps == 0 or self._is_long_ago(trainer)
        if is_due and not (trainer.enable_validation and validates):
            for history in (logger for logger in trainer.loggers if isinstance(logger, History)):
                history.write_ahead(trainer)
            self._save(trainer)

    def _is_long_ago(self, trainer: Trainer) -> bool:
        """Return whether `every_n_seconds` have passed since the last write."""
        if self.every_n_seconds is None:
            return False
        is_long_ago = monotonic() - self._last_write >= self.every_n_seconds
        if trainer.world_size == 1:
            return is_long_ago
        is_logged = trainer.global_step % trainer.log_every_n_steps == 0  # type: ignore[attr-defined]
        return is_logged and bool(trainer.strategy.broadcast(is_long_ago))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Set the line that a signal prints: the training ends after the validation."""
        if signals.state.notice:
            signals.defer("stopping after this validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Write the checkpoint, unless no step has been taken."""
        if signals.state.notice:
            signals.defer("stopping after this step")
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking and trainer.global_step:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        is_decided_anew = any(isinstance(callback, RunEnder) and callback.has_ended_run for callback in callbacks)
        description = _describe_run(trainer.lightning_module)
        if _ends_early(trainer) and trainer.global_step < trainer.max_steps and not is_decided_anew:
            self._ended_with = description.get("config")
        trainer.save_checkpoint(RunFolder(trainer.default_root_dir).last_checkpoint)
        self._last_write = monotonic()
        signals.state.checkpoint_note = f"the last checkpoint is of step {trainer.global_step:,}"
        if self._is_stopped or _is_signaled(trainer):
            name = description.get("stage")
            stage = f" of stage {name}" if name else ""
            signals.state.position = f"at step {trainer.global_step:,} of {trainer.max_steps:,}{stage}"
            signals.check()

    def state_dict(self) -> dict[str, Any]:
        """Return the configuration with which the training ended early, if it did."""
        return {"ended_with": self._ended_with}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._ended_with = state_dict["ended_with"]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the description of the run, and the checksum of its history."""
        checkpoint["run"] = _describe_run(pl_module)
        for history in (logger for logger in trainer.loggers if isinstance(logger, History)):
            checkpoint["history"] = history.checksum


def _ends_early(trainer: Trainer) -> bool:
    """Return whether something asked the training to end, and it has taken the steps of ``trainer.min_steps``."""
    return bool(trainer.should_stop and trainer.fit_loop._can_stop_early)


def _is_signaled(trainer: Trainer) -> bool:
    """Return whether a process of the training has got a signal; all of them get the same answer."""
    signum = signals.state.signum or 0
    if trainer.world_size > 1:
        number = torch.tensor(signum, device=trainer.strategy.root_device)
        signum = int(trainer.strategy.reduce(number, reduce_op="max"))
    if signum:
        signals.request(signum)
    return signum > 0


def _describe_run(module: Any) -> dict[str, Any]:
    """Return `MetricLearner.run_description`."""
    description: dict[str, Any] = module.run_description
    return description
