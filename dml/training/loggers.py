"""The loggers of a run: its history in ``metrics.csv``, and its run in Weights & Biases."""

import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_fabric.utilities.apply_func import convert_tensors_to_scalars
from pytorch_lightning import Trainer
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from dml.runtime.errors import InputError
from dml.runtime.files import write_csv, write_text
from dml.runtime.reading import rows_checksum
from dml.runtime.run_folder import RunFolder, remedy_for


class History(Logger):
    """Writes ``metrics.csv``, which has a row for each step that logged something, and a column for each metric.

    Unlike Lightning's CSVLogger it keeps the rows up to the step from which a run is resumed.

    Args:
        path: path of ``metrics.csv``.
        resumed_at: step from which a run is resumed; 0 starts a new file.
        checksum: value of `checksum` in the checkpoint of that step, which the rows must have; "" if it has none.
    """

    name, version, save_dir = "metrics.csv", "", ""

    def __init__(self, path: Path, resumed_at: int = 0, checksum: str = "") -> None:
        super().__init__()
        self.path, self.save_dir = path, str(path.parent)  # into which profilers write
        self.rows: dict[int, dict[str, Any]] = {}
        if resumed_at and path.exists():
            rows = {int(row["step"]): dict(row) for row in RunFolder(path.parent).history()}
            self.rows = {step: row for step, row in rows.items() if step <= resumed_at}
            if checksum and self.checksum != checksum:
                raise InputError(
                    f"{path}: damaged (its rows up to step {resumed_at} aren't those of checkpoints/last.ckpt); "
                    f"{remedy_for(path, path.parent)}"
                )

    @property
    def checksum(self) -> str:
        """The SHA-256 of the values of all rows; the order of the columns doesn't matter."""
        return rows_checksum(self.rows)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Write nothing, as the run folder holds the configuration already."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add metrics to the row of a step, whose index begins at 0; the row holds the number of steps, one more."""
        num_steps = (step or 0) + 1
        self.rows.setdefault(num_steps, {"step": num_steps}).update(metrics)
        if any(name.startswith("val/") for name in metrics):
            self.save()

    @rank_zero_only
    def write_ahead(self, trainer: Trainer) -> None:
        """Write the row of the step that has just ended, which Lightning logs only after its callbacks.

        `LastCheckpoint` calls it, so that no row is missing if the run is killed after its checkpoint and resumed.
        """
        connector = trainer._logger_connector  # No public attribute of Lightning holds the values that it will log.
        if connector.should_update_logs and (metrics := connector.metrics["log"]):
            row: dict[str, Any] = convert_tensors_to_scalars(metrics)
            row.setdefault("epoch", trainer.current_epoch)  # Lightning does so too if the module logs no epoch.
            self.log_metrics(row, trainer.fit_loop.epoch_loop._batches_that_stepped)
            self.save()

    @rank_zero_only
    def save(self) -> None:
        """Write the file."""
        columns = list(dict.fromkeys(["step", *(name for row in self.rows.values() for name in row)]))
        rows = ([self.rows[step].get(column, "") for column in columns] for step in sorted(self.rows))
        write_csv(self.path, [columns, *rows])

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the file; after a failure, ignore that the disk is full, so that the first error is shown."""
        if self.rows:
            with suppress(OSError) if status == "failed" else nullcontext():
                self.save()


class RunFolderWandbLogger(WandbLogger):
    """Logs a run to a W&B run; a resumed run logs to the same W&B run, whose id is in the run folder's wandb_id.txt.

    Args:
        save_dir: the run folder.
        id: id of the W&B run, in place of the one in wandb_id.txt.
        **settings: arguments of Lightning's WandbLogger and of ``wandb.init``.
    """

    def __init__(self, save_dir: str, *, id: str | None = None, **settings: Any) -> None:  # noqa: A002 (Lightning's name)
        super().__init__(save_dir=save_dir, id=id, **settings)
        if not self._offline and os.environ.get("WANDB_MODE", "online") == "online":
            _log_in()
        if self._wandb_init.get("anonymous") is None:
            self._wandb_init.pop("anonymous", None)  # W&B warns of this argument, even if it is None.

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run, which begins when this is first read; an earlier one of this process that is open has failed."""
        import wandb

        if self._id is None:
            self._id = self._wandb_init["id"] = _read_or_create_id(Path(str(self._save_dir), "wandb_id.txt"))
        if self._experiment is None and wandb.run is not None:
            if wandb.run.id == self._id:  # An earlier stage of this run has begun it.
                self._experiment = wandb.run
            else:
                wandb.finish(exit_code=1)
        return super().experiment

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the W&B run of a training that failed; after a training that succeeded the test still logs to it."""
        super().finalize(status)
        if status == "failed" and self._experiment is not None:
            self.close(exit_code=1)

    def close(self, exit_code: int = 0) -> None:
        """End the W&B run, so that the next run of this process begins another one."""
        self.experiment.finish(exit_code=exit_code)
        self._experiment = None

    def log_files(self, folder: RunFolder) -> None:
        """Log the retrieval picture and the report of a test, whichever exists."""
        import wandb

        if folder.picture_file.exists():
            self.experiment.log({"retrieval": wandb.Image(str(folder.picture_file))})
        if folder.report_file.exists():
            report = folder.report_file.read_text(encoding="utf-8")
            self.experiment.log({"report": wandb.Html(report, inject=False)})


@rank_zero_only
def _log_in() -> None:
    """Make sure that W&B knows this machine's key; a person at a terminal is asked for a missing one."""
    import wandb

    try:
        wandb.login(verify=True)
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise InputError(f"logger=wandb: {reason} logger.loggers.wandb.offline=true sends the run later") from error


@rank_zero_only
def _read_or_create_id(path: Path) -> str:
    if not path.exists():
        write_text(path, f"{token_hex(4)}\n")
    return path.read_text().strip()


@rank_zero_only
def log_final_metrics(loggers: Iterable[Logger], metrics: Mapping[str, Any], folder: RunFolder) -> None:
    """Log the contents of metrics.json as "test/level0/recall@1" and so on, but not to the history.

    Weights & Biases gets the report in the run's folder too; its run ends here.
    """
    numbers = {
        f"{metrics['split']}/{name}": value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    for logger in loggers:
        if not isinstance(logger, History):
            logger.log_metrics(numbers, metrics.get("step"))
        if isinstance(logger, RunFolderWandbLogger):
            logger.log_files(folder)
            logger.close()
