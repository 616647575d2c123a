"""The folder of a run: its files, its state, and the lock of the process that works in it."""

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from dml.runtime.configuration import flat, is_below
from dml.runtime.errors import InputError
from dml.runtime.files import clean_up, write_text
from dml.runtime.locks import holding
from dml.runtime.reading import read_bounded
from dml.runtime.run_files import (
    read_configuration,
    read_json,
    read_metrics,
    read_rows,
    read_runtime,
    read_yaml,
    remedy_for,
    replace_nan,
)

T = TypeVar("T")

CONFIGURATION = "configuration"
"""The key of metrics.json that identifies the configuration of the run, see `configuration_id`."""

RUN_KEYS = ("resume", "checkpoint", "debug", "sweep", "launcher", "trust", "accept_changed_data")
"""Keys of a configuration that don't change the result of a run, only how it is started."""

UNIDENTIFIED = (
    *("logger", "data.cache", "data.check_images", "data.eval_batch_size", "data.num_workers", "data.pin_memory"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy"),
    *("trainer.enable_progress_bar", "trainer.log_every_n_steps"),
)
"""Keys that say how a run loads, logs and is spread over devices: runs that differ in them alone are one training."""

HELD_FOLDER = "DML_HELD_FOLDER"
"""The environment variable that names a run folder whose lock the process that started this one holds."""


class RunState(StrEnum):
    """The states of a run; one that is running counts as interrupted."""

    NEW = "new"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"


class RunFolder:
    """The folder of a run, which needn't exist; it reads and writes all files of the run.

    `.hydra/` holds the configuration with which the run was last started. The process that holds the lock writes it,
    after all settings have been checked. A run is finished if metrics.json holds the metrics of this configuration.
    What reads a file raises an `InputError` if the file can't be read, or isn't as it was written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lock_file = self.path / ".lock"
        self.last_checkpoint = self.path / "checkpoints" / "last.ckpt"  # from which the run is resumed
        self.best_checkpoint = self.path / "checkpoints" / "best.ckpt"  # with the best validation
        self.first_checkpoint = self.path / "checkpoints" / "first.ckpt"  # from before the first step
        self.metrics_file = self.path / "metrics.json"  # the final metrics, written after all other files
        self.history_file = self.path / "metrics.csv"  # the metrics over the steps
        self.raw_metrics_file = self.path / "raw_metrics.json"  # of the backbone's features, before the first step
        self.queries_file = self.path / "per_query.parquet"  # each test query's metrics and nearest neighbors
        self.report_file = self.path / "report.html"
        self.picture_file = self.path / "retrieval.png"  # some queries and their nearest neighbors
        self.threshold_curves_file = self.path / "threshold_curves.json"  # error rates, which the report draws
        self.fixed_neighbors_file = self.path / "fixed_neighbors.npz"  # before the last stage
        self.evaluations_folder = self.path / "evaluations"  # of the run's checkpoints
        self.splits_file = self.path / "splits.json"  # the summary of the data set that the run began with
        self.config_file = self.path / ".hydra" / "config.yaml"  # in which interpolations aren't resolved
        self.hydra_file = self.path / ".hydra" / "hydra.yaml"  # the choice of each configuration group
        self.overrides_file = self.path / ".hydra" / "overrides.yaml"  # the arguments of the command line

    @classmethod
    def from_checkpoint(cls, path: Path) -> "RunFolder":
        """Return the folder of the run whose checkpoint has a path; neither of them need exist."""
        return cls(path.absolute().parent.parent)

    @contextmanager
    def hold(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the lock of the folder, so that no other process works in it, and delete partial files of killed ones.

        Another process at work is waited for, or else refused; so is a link that would lead what is written out of it.
        """
        if os.environ.get(HELD_FOLDER) == str(self.path):
            yield
            return
        self._refuse_links()
        self.path.mkdir(parents=True, exist_ok=True)
        resuming = shlex.quote(f"resume={self.path}")
        does = f"is training this run; {resuming} goes on with it after its end"
        with holding(self.lock_file, name=self.path, does=does, wait=wait):
            for folder in (self.path, self.last_checkpoint.parent, self.config_file.parent):
                clean_up(folder)
            yield

    def _refuse_links(self) -> None:
        files = [path for path in vars(self).values() if isinstance(path, Path) and path != self.path]
        folders = [self.path / name for name in ("checkpoints", ".hydra", "wandb", "tensorboard")]
        parent = [self.path.parent] if self.path.parent.name == self.evaluations_folder.name else []
        for path in (*files, *folders, *parent, *self.path.glob("*.log"), *self.path.glob("checkpoints/*")):
            if path.is_symlink():
                raise InputError(f"{path}: a link, and a run writes into its own folder alone; delete the link")

    def write_configuration(self, config: str, hydra: str, overrides: str) -> None:
        """Write the three files of `.hydra/`, all of them YAML texts."""
        for cached in ("config", "overrides", "_runtime"):
            self.__dict__.pop(cached, None)
        # The configuration is written last, because it decides whether metrics.json holds the metrics of this run.
        for path, text in ((self.overrides_file, overrides), (self.hydra_file, hydra), (self.config_file, config)):
            write_text(path, text)

    @property
    def has_configuration(self) -> bool:
        """Tell whether a run has been started in the folder."""
        return self.config_file.is_file() and self.overrides_file.is_file()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration without `RUN_KEYS`."""
        return without_run_keys(self._read(self.config_file, read_configuration))

    @property
    def config_text(self) -> str:
        """The whole configuration as a YAML text."""
        self._read(self.config_file, read_configuration)
        return read_bounded(self.config_file).decode()

    @property
    def is_evaluation(self) -> bool:
        """Tell whether the folder is one in which ``evaluate.py`` tested a checkpoint, and no run was trained."""
        config: Mapping[str, Any] = self._read_if_there(self.config_file, lambda path: read_yaml(path, dict), {})
        return "checkpoint" in config

    @cached_property
    def overrides(self) -> list[str]:
        """The overrides: the arguments of the command line."""
        read: list[Any] = self._read_if_there(self.overrides_file, lambda path: read_yaml(path, list), [])
        return [*map(str, read)]

    @cached_property
    def _runtime(self) -> tuple[dict[str, Any], str]:
        nothing: tuple[dict[str, Any], str] = {}, ""
        return self._read_if_there(self.hydra_file, read_runtime, nothing)

    @property
    def choices(self) -> dict[str, Any]:
        """The choice of each configuration group except Hydra's groups; empty if there is no hydra.yaml."""
        return {group: choice for group, choice in self._runtime[0].items() if "hydra/" not in group}

    @property
    def start_folder(self) -> str:
        """The working folder in which the run was last started; empty if there is no hydra.yaml."""
        return self._runtime[1]

    @property
    def state(self) -> RunState:
        """The state of the run."""
        if self.is_finished:
            return RunState.FINISHED
        return RunState.INTERRUPTED if self.has_configuration or self.last_checkpoint.exists() else RunState.NEW

    @property
    def is_finished(self) -> bool:
        """Tell whether the folder holds the metrics of its configuration."""
        if not self.metrics_file.exists():
            return False
        identifier = self.metrics().get(CONFIGURATION)
        return identifier is None or not self.config_file.exists() or identifier == configuration_id(self.config)

    def metrics(self) -> dict[str, Any]:
        """Read metrics.json."""
        return self._read(self.metrics_file, read_metrics)

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write metrics.json."""
        _write_json(self.metrics_file, replace_nan(metrics))

    def raw_metrics(self, configuration: str) -> dict[str, Any] | None:
        """Read the metrics of the backbone's features; None if there are none of this `configuration_id`."""
        metrics: dict[str, Any] = self._read_if_there(self.raw_metrics_file, read_metrics, {})
        return metrics if metrics.pop(CONFIGURATION, None) == configuration else None

    def write_raw_metrics(self, metrics: Mapping[str, Any], configuration: str) -> None:
        """Write the metrics of the backbone's features, and the identifier of the configuration that gave them."""
        _write_json(self.raw_metrics_file, replace_nan({**metrics, CONFIGURATION: configuration}))

    def threshold_curves(self) -> dict[str, list[list[float]]]:
        """Read the curves of the thresholds, {split: rows of numbers}; no curve if the test wrote none."""
        return self._read_if_there(self.threshold_curves_file, read_json, {})

    def write_threshold_curves(self, curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
        """Write the rows of the thresholds' curves by name; without any, remove earlier ones."""
        if curves:
            _write_json(self.threshold_curves_file, curves)
        else:
            self.threshold_curves_file.unlink(missing_ok=True)

    def splits(self) -> dict[str, dict[str, str]] | None:
        """Read the summary of the data set, {split: {class: summary of its images}}; None for runs without the file."""
        return self._read_if_there(self.splits_file, read_json, None)

    def write_splits(self, splits: Mapping[str, Mapping[str, str]]) -> None:
        """Write the summary of the data set."""
        _write_json(self.splits_file, splits)

    def history(self) -> list[dict[str, str]]:
        """Read the rows of metrics.csv, each without the columns in which it is empty; no rows if there is no file."""
        return self._read_if_there(self.history_file, read_rows, [])

    def values(self, metric: str) -> dict[int, float]:
        """Read the values of a metric in the history, by step."""
        return {int(row["step"]): float(row[metric]) for row in self.history() if metric in row}

    def _read_if_there(self, path: Path, read: Callable[[Path], T], default: T) -> T:
        return self._read(path, read) if path.exists() else default

    def _read(self, path: Path, read: Callable[[Path], T]) -> T:
        """Read a file of the folder with ``read``, and turn damage into an error line with a remedy."""
        try:
            return read(path)
        except ValueError as error:
            damage = " ".join(str(error).split())
            raise InputError(f"{path}: damaged ({damage}); {remedy_for(path, self.path)}") from error


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_text(path, f"{json.dumps(values, indent=2)}\n")


def configuration_id(config: Mapping[str, Any]) -> str:
    """Compute a short identifier of what a configuration trains: of all values but `RUN_KEYS` and `UNIDENTIFIED`."""
    values = {key: value for key, value in flat(without_run_keys(config)).items() if not is_below(key, UNIDENTIFIED)}
    return sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def without_run_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the keys of `RUN_KEYS`."""
    return {key: value for key, value in config.items() if key not in RUN_KEYS}


def folders_below(folder: Path) -> list[RunFolder]:
    """Find the folders of runs and of evaluations in a folder, at any depth and in any state."""
    return [RunFolder(config.parents[1]) for config in sorted(folder.rglob(".hydra/config.yaml"))]


def newest_runs(folder: Path) -> Iterator[RunFolder]:
    """Find the runs in a folder, at any depth, the one that was started or resumed last before others."""
    folders = sorted(folders_below(folder), key=lambda run: run.config_file.stat().st_mtime, reverse=True)
    return (run for run in folders if not run.is_evaluation)
