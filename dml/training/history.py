import csv
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_fabric.utilities.apply_func import convert_tensors_to_scalars
from pytorch_lightning import Trainer
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from dml.ops.files import replacing
from dml.ops.run_folder import read_history


class History(Logger):
    """The run's ``metrics.csv``: a row a step that logged something, a column a metric.

    Lightning's CSVLogger deletes what an earlier part of a resumed run wrote; this one keeps its rows up to the
    step that the run is resumed from. The file is replaced whole, so that it can be read at any time.

    Args:
        path: the file.
        resumed_at: the step that the run goes on from; 0 starts a new file.
    """

    def __init__(self, path: Path, resumed_at: int = 0) -> None:
        super().__init__()
        self.path = path
        self.rows: dict[int, dict[str, Any]] = {}
        if resumed_at and path.exists():
            rows = {int(row["step"]): row for row in read_history(path)}
            self.rows |= {step: dict(row) for step, row in rows.items() if step <= resumed_at}

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def version(self) -> str:
        """A run folder has one history."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """The run folder holds the configuration already."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Adds to the row of ``step``, the number of optimizer steps taken."""
        # Lightning logs the step that was just taken under its index
        taken = (step or 0) + 1
        self.rows.setdefault(taken, {"step": taken}).update(metrics)
        if any(name.startswith("val/") for name in metrics):
            self.save()

    @rank_zero_only
    def write_ahead(self, trainer: Trainer) -> None:
        """Writes the row of the step that was just taken, which Lightning logs only after its callbacks.

        A callback that writes a checkpoint of that step calls this first: a run that is killed between the two, and
        resumed, then lacks no row.
        """
        connector = trainer._logger_connector  # Lightning has no other way to tell what it is about to log
        if connector.should_update_logs:
            row: dict[str, Any] = convert_tensors_to_scalars(connector.metrics["log"])
            row.setdefault("epoch", trainer.current_epoch)  # as Lightning does, where the module doesn't log it
            self.log_metrics(row, trainer.fit_loop.epoch_loop._batches_that_stepped)
            self.save()

    @rank_zero_only
    def save(self) -> None:
        """Writes the file."""
        columns = list(dict.fromkeys(name for row in self.rows.values() for name in row))
        with replacing(self.path) as partial, partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows[step] for step in sorted(self.rows))

    @rank_zero_only
    def finalize(self, status: str) -> None:  # noqa: ARG002
        """Writes the file."""
        if self.rows:
            self.save()
