from argparse import Namespace
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from lightning_fabric.utilities.apply_func import convert_tensors_to_scalars
from pytorch_lightning import Trainer
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from dml.runtime.errors import InputError
from dml.runtime.filesystem.checksums import rows_checksum
from dml.runtime.run_folders.run_files import remedy_for
from dml.runtime.run_folders.run_folder import RunFolder
from dml.runtime.text.text_tables import write_csv


class History(Logger):
    """Writes ``metrics.csv``, which has a row for each step that logged something, and a column for each metric.

    When a run is resumed, the rows up to the step of its checkpoint stay; Lightning's CSVLogger would delete them. Each
    write replaces the file as a whole, so that it can be read at any time.

    Args:
        path: path of ``metrics.csv``.
        resumed_at: step from which a run is resumed; 0 starts a new file.
        checksum: value of `checksum` in the checkpoint of that step; "" if the checkpoint has none.

    Raises:
        InputError: if the file can't be read, or if its rows have another checksum than the checkpoint says.
    """

    def __init__(self, path: Path, resumed_at: int = 0, checksum: str = "") -> None:
        super().__init__()
        self.path = path
        self.rows: dict[int, dict[str, Any]] = {}
        if resumed_at and path.exists():
            rows = {int(row["step"]): row for row in RunFolder(path.parent).history()}
            self.rows |= {step: dict(row) for step, row in rows.items() if step <= resumed_at}
            if checksum and self.checksum != checksum:
                raise InputError(
                    f"{path}: damaged (its rows up to step {resumed_at} aren't those of checkpoints/last.ckpt); "
                    f"{remedy_for(path, path.parent, is_resumable=True)}"
                )

    @property
    def checksum(self) -> str:
        """The SHA-256 of the values of all rows; the order of the columns doesn't matter."""
        return rows_checksum(self.rows)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    @property
    def version(self) -> str:
        """An empty version, as a run folder has one history."""
        return ""

    @property
    def save_dir(self) -> str:
        """The path of the run folder."""
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Write nothing, as the run folder holds the configuration already."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add metrics to the row of a step.

        Args:
            metrics: values by name.
            step: index of the step, which begins at 0. The row holds the number of steps, which is one more.
        """
        num_steps = (step or 0) + 1
        self.rows.setdefault(num_steps, {"step": num_steps}).update(metrics)
        if any(name.startswith("val/") for name in metrics):
            self.save()

    @rank_zero_only
    def write_ahead(self, trainer: Trainer) -> None:
        """Write the row of the step that has just ended, which Lightning logs only after its callbacks.

        A callback calls this before it writes the checkpoint of that step. So no row is missing if the run is killed
        after the checkpoint was written, and resumed.
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
