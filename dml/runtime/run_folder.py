"""The folder of a run: its files, its state, the lock of the process that works in it, and its removal if unused."""

import csv
import json
import math
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dml.runtime import signals
from dml.runtime.configuration import check_parts, flat, is_below
from dml.runtime.errors import InputError
from dml.runtime.files import clean_up, holding, write_text
from dml.runtime.reading import DamageError, parse_json, parse_yaml, read_bounded

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
        return "checkpoint" in self._read(self.config_file, read_mapping, {})

    @cached_property
    def overrides(self) -> list[str]:
        """The overrides: the arguments of the command line."""
        return [*map(str, self._read(self.overrides_file, lambda path: read_yaml(path, list), []))]

    @cached_property
    def _runtime(self) -> tuple[dict[str, Any], str]:
        return self._read(self.hydra_file, read_runtime, ({}, ""))

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
        metrics: dict[str, Any] = self._read(self.raw_metrics_file, read_metrics, {})
        return metrics if metrics.pop(CONFIGURATION, None) == configuration else None

    def write_raw_metrics(self, metrics: Mapping[str, Any], configuration: str) -> None:
        """Write the metrics of the backbone's features, and the identifier of the configuration that gave them."""
        _write_json(self.raw_metrics_file, replace_nan({**metrics, CONFIGURATION: configuration}))

    def threshold_curves(self) -> dict[str, list[list[float]]]:
        """Read the curves of the thresholds, {split: rows of numbers}; no curve if the test wrote none."""
        return self._read(self.threshold_curves_file, read_json, {})

    def write_threshold_curves(self, curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
        """Write the rows of the thresholds' curves by name; without any, remove earlier ones."""
        if curves:
            _write_json(self.threshold_curves_file, curves)
        else:
            self.threshold_curves_file.unlink(missing_ok=True)

    def splits(self) -> dict[str, dict[str, str]] | None:
        """Read the summary of the data set, {split: {class: summary of its images}}; None for runs without the file."""
        return self._read(self.splits_file, read_json) if self.splits_file.exists() else None

    def write_splits(self, splits: Mapping[str, Mapping[str, str]]) -> None:
        """Write the summary of the data set."""
        _write_json(self.splits_file, splits)

    def history(self) -> list[dict[str, str]]:
        """Read the rows of metrics.csv, each without the columns in which it is empty; no rows if there is no file."""
        return self._read(self.history_file, read_rows, [])

    def values(self, metric: str) -> dict[int, float]:
        """Read the values of a metric in the history, by step."""
        return {int(row["step"]): float(row[metric]) for row in self.history() if metric in row}

    def _read(self, path: Path, read: Callable[[Path], T], default: Any = None) -> T:
        """Read a file with ``read``, or return the default if it is missing; damage is an error line with a remedy."""
        try:
            content: T = default if default is not None and not path.exists() else read(path)
        except ValueError as error:
            damage = " ".join(str(error).split())
            raise InputError(f"{path}: damaged ({damage}); {remedy_for(path, self.path)}") from error
        return content


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


def remedy_for(path: Path, run: Path) -> str:
    """Return the end of an error line that tells what a user can do about a damaged file of a run."""
    damaged = path.parent if path.parent.name == ".hydra" else "it"
    return f"delete {damaged}, and {shlex.quote(f'resume={run}')} goes on without"


def read_yaml(path: Path, kind: type[T]) -> T:
    """Read a YAML file, whose content must be of the type ``kind``; like the functions below it raises a ValueError."""
    try:
        return _check_kind(parse_yaml(read_bounded(path).decode()), kind)
    except yaml.YAMLError as error:
        raise DamageError(f"no YAML: {error}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds values by name."""
    return read_yaml(path, dict)


def read_configuration(path: Path) -> dict[str, Any]:
    """Read the configuration of a run."""
    check_parts(config := read_mapping(path))
    return config


def read_runtime(path: Path) -> tuple[dict[str, Any], str]:
    """Read from hydra.yaml the choice of each configuration group, and the working folder; {} and "" without Hydra."""
    content = read_mapping(path)
    try:
        runtime = content["hydra"]["runtime"] if content else {"choices": {}}
        return {str(group): choice for group, choice in runtime["choices"].items()}, str(runtime.get("cwd", ""))
    except (AttributeError, KeyError, TypeError) as error:
        raise DamageError("no hydra.runtime.choices in it") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds values by name."""
    return _check_kind(parse_json(read_bounded(path)), dict)


def _check_kind(content: Any, kind: type[T]) -> T:
    if not isinstance(content, kind):
        raise DamageError(f"it holds {type(content).__name__}, not {kind.__name__}")
    return content


def read_metrics(path: Path) -> dict[str, Any]:
    """Read metrics and facts about a test by name, in which a null is NaN."""
    values = restore_nan(read_json(path))
    check_metrics(values)
    return values


def check_metrics(values: Mapping[str, Any]) -> None:
    """Make sure that metrics, whose names hold a slash, are numbers; facts about the test may be texts."""
    for name, value in values.items():
        if "/" in name and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{name} is {value!r}, not a number")


def replace_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name with None in place of NaN, which JSON doesn't have."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


def restore_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `replace_nan` was given."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file of numbers with increasing steps -> the cells of each row by column, without empty ones."""
    rows: list[dict[str, str]] = []
    previous_step = -1
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file, strict=True)
            header = next(lines, [])
            for line in lines:
                row = {name: value for name, value in zip(header, line, strict=True) if value}
                numbers = {name: float(value) for name, value in row.items()}
                if numbers["step"] <= previous_step:
                    raise ValueError(f"step {row['step']} after step {previous_step}")  # noqa: TRY301
                rows.append(row)
                previous_step = int(row["step"])
    except (csv.Error, ValueError, KeyError) as error:
        raise ValueError(f"line {len(rows) + 2}: {error}") from error
    return rows


_new_folders: set[Path] = set()
"""The absolute paths of the folders that this process made, or is going to make."""


def _list_missing(folder: Path) -> list[Path]:
    return [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]


def make_folder(folder: Path) -> bool:
    """Make a folder, and return whether this process made it, and no other one."""
    missing = _list_missing(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    _new_folders.update(missing)
    return True


def note_new_folder(folder: Path) -> None:
    """Note that a folder which doesn't exist yet, such as one that the user names, will be of this process."""
    _new_folders.update(_list_missing(folder))


def remove_unused_folder(folder: Path, removable: Collection[str] = ()) -> None:
    """Remove the folder of a run that this process made, and its new parents, if nothing is in it.

    The file of the lock, which the caller holds, an empty log that Hydra has opened, and what is named removable don't
    count.
    """
    path = folder.absolute()
    if path not in _new_folders or not path.exists():
        return
    for entry in path.iterdir():
        is_empty_log = entry.suffix == ".log" and not entry.stat().st_size
        if not is_empty_log and entry.name not in (".lock", *removable):
            return
    shutil.rmtree(path)
    _new_folders.remove(path)
    if not any(path.parent.iterdir()):  # no other run is in it
        remove_unused_folder(path.parent)


def remove_unused_folders() -> None:
    """Remove each folder of this process in which no run was begun."""
    for path in sorted(_new_folders, reverse=True):
        remove_unused_folder(path)


signals.before_end.append(remove_unused_folders)
