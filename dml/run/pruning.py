"""Ends those runs of a sweep early that fall behind the others: ``sweep.pruner``."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn

from dml.ops.run_folder import RunFolder, folders_below
from dml.run.present import console
from dml.run.sweeps import is_pruned, monitor
from dml.training.checkpoints import RunEnder
from dml.training.history import History


def pruning(config: DictConfig, folder: RunFolder) -> list[Callback]:
    """The callback of ``sweep.pruner``, if there is one."""
    if config.sweep.pruner is None:
        return []
    direction = config.sweep.direction[config.checkpoints.mode]
    return [Pruning(instantiate(config.sweep.pruner), monitor(config), direction, folder, Path(config.sweep.folder))]


class Pruning(RunEnder):
    """Ends a training after a validation, if an Optuna pruner says so.

    Hydra's sweepers hand no trial to the runs they start, in whatever process or machine. So the pruner is given a
    study that is made of what all of them can read: the histories of the finished, unpruned runs in the sweep's
    folder. A resumed run is judged again where it goes on, and ends where it would have ended.

    Args:
        pruner: one of `optuna.pruners`.
        metric: the validated metric, by its name in metrics.csv.
        direction: "maximize" or "minimize".
        folder: of the run.
        sweep: of its sweep.
    """

    def __init__(self, pruner: Any, metric: str, direction: str, folder: RunFolder, sweep: Path) -> None:
        self.pruner = pruner
        self.metric = metric
        self.direction = direction
        self.folder = folder
        self.sweep = sweep

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Judges a resumed run."""
        if trainer.global_step:
            self._judge(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Judges the run."""
        if trainer.state.fn == TrainerFn.FITTING:
            self._judge(trainer)

    def _judge(self, trainer: Trainer) -> None:
        if trainer.global_step < trainer.max_steps:  # else there is nothing left to end
            stop = trainer.is_global_zero and self._is_behind(trainer)
            self.has_ended_run = trainer.should_stop = trainer.strategy.broadcast(stop)

    def _is_behind(self, trainer: Trainer) -> bool:
        for logger in trainer.loggers:
            if isinstance(logger, History):
                logger.save()
        own = self.folder.values(self.metric)
        others = [
            folder.values(self.metric)
            for folder in folders_below(self.sweep)
            if folder.is_finished and not is_pruned(folder)
        ]
        stop = is_behind(own, others, self.pruner, self.direction)
        if stop:
            console.print(
                f"[bold]pruned[/]   at step {max(own):,}: {self.metric} {own[max(own)]:.3f} is behind the "
                f"sweep's {len(others)} finished runs"
            )
        return stop


def is_behind(own: Mapping[int, float], others: Iterable[Mapping[int, float]], pruner: Any, direction: str) -> bool:
    """Whether an Optuna pruner ends a run.

    Args:
        own: {step: validated value} of the run.
        others: the same of the finished ones.
        pruner: one of `optuna.pruners`.
        direction: "maximize" or "minimize".
    """
    import optuna

    optuna.logging.set_verbosity(logging.WARNING)  # else it announces every study
    study = optuna.create_study(direction=direction, pruner=pruner)
    for values in filter(None, others):
        trial = _reported(study, values)
        study.tell(trial, values[max(values)])
    return bool(_reported(study, own).should_prune())


def _reported(study: Any, values: Mapping[int, float]) -> Any:
    trial = study.ask()
    for step, value in values.items():
        trial.report(value, step)
    return trial
