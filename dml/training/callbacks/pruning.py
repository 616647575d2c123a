"""Early ends of the runs of a sweep whose metrics are behind those of the others: ``sweep.pruner``."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.trainer.states import TrainerFn

from dml.runtime.console import console
from dml.runtime.run_folder import RunFolder, RunState, runs_below
from dml.runtime.text import in_markup
from dml.training.callbacks.checkpoints import RunEnder
from dml.training.loggers import History


class Pruning(RunEnder):
    """Ends a training after a validation, if an Optuna pruner decides so.

    The runs of a sweep may be on several machines, and Hydra's sweepers pass no Optuna trial to them. So the pruner
    gets a study that is made from the histories of the finished runs in the folder of the sweep, without the pruned
    ones. A resumed run is compared with them again when it begins, so that it ends where it would have ended.

    Args:
        pruner: object of a class in `optuna.pruners`.
        metric: name of the validated metric in metrics.csv.
        direction: "maximize" if larger values of the metric are better, "minimize" if smaller ones are.
        folder: folder of the run.
        sweep: folder of the sweep.
    """

    def __init__(self, pruner: Any, metric: str, direction: str, folder: RunFolder, sweep: Path) -> None:
        self.pruner = pruner
        self.metric = metric
        self.direction = direction
        self.folder = folder
        self.sweep = sweep

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Compare a resumed run with the finished runs."""
        if trainer.global_step:
            self._compare(trainer)

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Compare the run with the finished runs."""
        if trainer.state.fn == TrainerFn.FITTING:
            self._compare(trainer)

    def _compare(self, trainer: Trainer) -> None:
        if 0 < trainer.global_step < trainer.max_steps:  # At the last step the run ends anyway.
            self.has_ended_run = trainer.strategy.broadcast(trainer.is_global_zero and self._is_behind(trainer))
            trainer.should_stop |= self.has_ended_run  # trainer.max_time may have ended it already

    def _is_behind(self, trainer: Trainer) -> bool:
        for logger in trainer.loggers:
            if isinstance(logger, History):
                logger.save()
        values = self.folder.values(self.metric)
        finished_runs = [
            _read_finished_values(folder, self.metric)
            for folder in runs_below(self.sweep)
            if folder.is_finished and not folder.is_pruned
        ]
        stop = is_behind(values, finished_runs, self.pruner, self.direction)
        if stop:
            step = max(values)
            console.print(
                f"[bold]pruned[/]   at step {step:,}: {in_markup(self.metric)} {values[step]:.3f} is behind the "
                f"sweep's {len(finished_runs)} finished runs"
            )
        return stop


def _read_finished_values(folder: RunFolder, metric: str) -> dict[int, float]:
    if folder.state == RunState.FINISHED:  # A run that is being resumed still writes its files.
        folder.check_files()
    return folder.values(metric)


def is_behind(
    values: Mapping[int, float], finished_runs: Iterable[Mapping[int, float]], pruner: Any, direction: str
) -> bool:
    """Return whether an Optuna pruner ends a run."""
    import optuna

    optuna.logging.set_verbosity(logging.WARNING)  # Otherwise Optuna prints a line for every study.
    # Hyperband draws by Python's hash of the study's name and the trial's number, which differs between processes.
    study = optuna.create_study(study_name="sweep", direction=direction, pruner=pruner)
    for finished_values in filter(None, finished_runs):
        trial = study.ask()
        for step, value in finished_values.items():
            trial.report(value, step)
            trial.should_prune()  # successive halving and Hyperband learn of a value only when they are asked
        study.tell(trial, finished_values[max(finished_values)])
    trial = study.ask()
    for step, value in values.items():
        trial.report(value, step)
    return bool(trial.should_prune())
