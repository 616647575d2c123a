import os
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from dml.evaluation.names import full_metric_name
from dml.runtime.run_folders.run_folder import RunFolder
from dml.runtime.text.console import console


class BestCheckpoint(ModelCheckpoint):
    """Write ``checkpoints/best.ckpt`` after each validation that is better than all before it.

    Unlike Lightning's `ModelCheckpoint`, a resumed run still knows the score that it saved last, and a run whose
    folder was moved or copied still knows the best score. On a small validation split several validations may find the
    same share of queries, even all: a second metric decides between them.

    It also ends a training that has not been better for several validations (early stopping), as both need to know
    which validation was the best.

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
        super().__init__(monitor=monitor, mode=mode, save_on_train_epoch_end=False, enable_version_counter=False)
        self.metric, self.tie_breaker = full_metric_name(monitor), tie_breaker and full_metric_name(tie_breaker)
        self.patience = patience
        self._best_tie: float | None = None
        self._validations_since_best = 0
        self._last_global_step_saved = -1  # Lightning would skip the validation before the first step

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the folder of the run and the split that is validated."""
        path = RunFolder(trainer.default_root_dir).best_checkpoint
        self.dirpath, self.filename = os.path.realpath(path.parent), path.stem
        self.monitor = f"{pl_module.validated_on}/{self.metric}"
        super().setup(trainer, pl_module, stage)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Return whether the last validation is the best so far, of which the caller then writes the checkpoint."""
        tie = self._read_tie(trainer)
        is_best: bool = super().check_monitor_top_k(trainer, current)
        is_equal = current is not None and self.best_model_score is not None and bool(current == self.best_model_score)
        if not is_best and is_equal and tie is not None and self._best_tie is not None:
            is_best = trainer.strategy.reduce_boolean_decision(tie > self._best_tie)
        self._validations_since_best += 1
        if is_best:
            self._best_tie, self._validations_since_best = tie, 0
        return is_best

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the checkpoint if the validation is the best so far; end the training if it has long been another."""
        super().on_validation_end(trainer, pl_module)
        fewest = max(1, trainer.min_steps or 0)
        may_end = trainer.state.fn == TrainerFn.FITTING and fewest <= trainer.global_step < trainer.max_steps
        if may_end and self.patience is not None and self._validations_since_best >= self.patience:
            trainer.should_stop = True
            if trainer.is_global_zero:
                console.print(
                    f"[bold]ended[/]    at step {trainer.global_step:,}: none of the last {self.patience:,} "
                    "validations was better than all before (checkpoints.patience)"
                )

    def _read_tie(self, trainer: Trainer) -> float | None:
        split = str(self.monitor).partition("/")[0]
        value = trainer.callback_metrics.get(f"{split}/{self.tie_breaker}")
        return None if value is None else float(value)

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning does, and what the next validations are compared with."""
        return super().state_dict() | {
            "best_tie": self._best_tie,
            "validations_since_best": self._validations_since_best,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what Lightning does, and the last score, with the files in the present folder of the run."""
        super().load_state_dict(_move_files(str(self.dirpath), state_dict))
        self.current_score = state_dict["current_score"]
        self._best_tie = state_dict.get("best_tie")  # checkpoints of older versions have none, and no number either
        self._validations_since_best = state_dict.get("validations_since_best", 0)


def _move_files(folder: str, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a `ModelCheckpoint` with its files in another folder."""

    def move(path: str) -> str:
        return str(Path(folder, Path(path).name)) if path else path

    paths = {name: move(state[name]) for name in ("best_model_path", "kth_best_model_path", "last_model_path")}
    best = {move(path): score for path, score in state["best_k_models"].items()}
    return state | paths | {"dirpath": folder, "best_k_models": best}
