"""A run's folder: what a run leaves behind, how far it has got, and who is working in it."""

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from dml.ops.errors import InputError
from dml.ops.files import remove_partial_files, replacing
from dml.ops.locks import FileLock

CONFIGURATION = "configuration"
"""The key of metrics.json that names the configuration whose metrics they are, see `configuration_id`."""

RUN_KEYS = ("resume", "checkpoint", "debug", "sweep", "launcher", "trust")
"""Keys of a configuration that say how to run, not what."""


class RunState(StrEnum):
    """How far a run has got."""

    NEW = "new"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"


class RunFolder:
    """The folder of a run, through which everything that a run leaves behind is found, read and written.

    `.hydra/` holds the configuration that the run was last started with: it is written by the process that holds the
    lock, after all that it was given has been checked. A run is finished if metrics.json holds the metrics of that
    configuration.

    Args:
        path: the folder; it needn't exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lock = FileLock(self.path / ".lock")

    @property
    def last_checkpoint(self) -> Path:
        """The state that the run goes on from."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best_checkpoint(self) -> Path:
        """The state with the best validation."""
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def metrics_file(self) -> Path:
        """The final metrics, written last of all."""
        return self.path / "metrics.json"

    @property
    def history_file(self) -> Path:
        """The metrics over the steps."""
        return self.path / "metrics.csv"

    @property
    def raw_metrics_file(self) -> Path:
        """The metrics of the backbone's own features, from before the first step."""
        return self.path / "raw_metrics.json"

    @property
    def queries_file(self) -> Path:
        """Each test query's metrics and nearest neighbours."""
        return self.path / "per_query.parquet"

    @property
    def report_file(self) -> Path:
        """The report."""
        return self.path / "report.html"

    @property
    def picture_file(self) -> Path:
        """Some queries and their nearest neighbours."""
        return self.path / "retrieval.png"

    @property
    def fixed_neighbors_file(self) -> Path:
        """The test images' neighbours from before the last stage (``evaluation.fixed_neighbors``)."""
        return self.path / "fixed_neighbors.npz"

    @property
    def config_file(self) -> Path:
        """The configuration, its interpolations unresolved."""
        return self.path / ".hydra" / "config.yaml"

    @property
    def hydra_file(self) -> Path:
        """Hydra's own configuration: the groups' choices among it."""
        return self.path / ".hydra" / "hydra.yaml"

    @property
    def overrides_file(self) -> Path:
        """What the command line said."""
        return self.path / ".hydra" / "overrides.yaml"

    @contextmanager
    def hold(self, *, wait: bool = False) -> Iterator[None]:
        """Makes this process the only one that works in the folder; what killed ones were writing is deleted.

        Args:
            wait: for the end of another process's work, instead of refusing.

        Raises:
            InputError: if another process works there.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with self.lock.hold(wait=wait):
                remove_partial_files(self.path)
                yield
        except BlockingIOError as error:
            raise InputError(
                f"{self.path}: {error.strerror} is training this run; resume={self.path} goes on with it after its end"
            ) from error

    def write_configuration(self, config: str, hydra: str, overrides: str) -> None:
        """Writes `.hydra/`: three YAML texts."""
        self.config_file.parent.mkdir(parents=True, exist_ok=True)
        for read in ("config", "overrides", "choices"):
            self.__dict__.pop(read, None)
        # the configuration last: it decides whether the folder's metrics are those of the run
        for path, text in ((self.overrides_file, overrides), (self.hydra_file, hydra), (self.config_file, config)):
            with replacing(path) as partial:
                partial.write_text(text, encoding="utf-8")

    @property
    def has_configuration(self) -> bool:
        """Whether a run has been started in the folder."""
        return self.config_file.is_file() and self.overrides_file.is_file()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration without `RUN_KEYS`."""
        return without_run_keys(_read_yaml(self.config_file) or {})

    @property
    def is_evaluation(self) -> bool:
        """Whether ``evaluate.py`` has tested a checkpoint in the folder: no run was trained there."""
        return self.config_file.is_file() and "checkpoint" in (_read_yaml(self.config_file) or {})

    @cached_property
    def overrides(self) -> list[str]:
        """What the command line said."""
        return [str(override) for override in _read_yaml(self.overrides_file) or ()]

    @cached_property
    def choices(self) -> dict[str, Any]:
        """The choice of each configuration group but Hydra's own; empty if there is no hydra.yaml."""
        if not self.hydra_file.exists():
            return {}
        content = _read_yaml(self.hydra_file)
        choices = content["hydra"]["runtime"]["choices"] if content else {}
        return {str(group): choice for group, choice in choices.items() if "hydra/" not in str(group)}

    @property
    def state(self) -> RunState:
        """How far the run has got."""
        if self.lock.is_held():
            return RunState.RUNNING
        if self.is_finished:
            return RunState.FINISHED
        return RunState.INTERRUPTED if self.has_configuration or self.last_checkpoint.exists() else RunState.NEW

    @property
    def is_finished(self) -> bool:
        """Whether the folder holds the metrics of its configuration."""
        if not self.metrics_file.exists():
            return False
        named = self.metrics().get(CONFIGURATION)
        return named is None or not self.config_file.exists() or named == configuration_id(self.config)

    def metrics(self) -> dict[str, Any]:
        """The contents of metrics.json.

        Raises:
            InputError: if it can't be read.
        """
        return _read_json(self.metrics_file)

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Writes metrics.json."""
        _write_json(self.metrics_file, metrics)

    def raw_metrics(self, configuration: str) -> dict[str, Any] | None:
        """The metrics of the backbone's own features, if they are there and of this configuration."""
        if not self.raw_metrics_file.exists():
            return None
        metrics = _read_json(self.raw_metrics_file)
        return metrics if metrics.pop(CONFIGURATION, None) == configuration else None

    def write_raw_metrics(self, metrics: Mapping[str, Any], configuration: str) -> None:
        """Keeps the metrics of the backbone's own features."""
        _write_json(self.raw_metrics_file, {**metrics, CONFIGURATION: configuration})

    def history(self) -> list[dict[str, str]]:
        """The rows of metrics.csv, without the columns that a row leaves empty; none if there is no file."""
        if not self.history_file.exists():
            return []
        return read_history(self.history_file)

    def values(self, metric: str) -> dict[int, float]:
        """{step: value} of a metric in the history."""
        return {int(row["step"]): float(row[metric]) for row in self.history() if metric in row}


def configuration_id(config: Mapping[str, Any]) -> str:
    """A short name of a configuration: equal for equal values, whatever their order."""
    plain = json.dumps(without_run_keys(config), sort_keys=True, default=str)
    return sha256(plain.encode()).hexdigest()[:16]


def without_run_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says of the run itself, without `RUN_KEYS`."""
    return {key: value for key, value in config.items() if key not in RUN_KEYS}


def folders_below(folder: Path) -> list[RunFolder]:
    """The folders of the runs in a folder, at any depth, whatever their state."""
    return [RunFolder(config.parents[1]) for config in sorted(folder.rglob(".hydra/config.yaml"))]


def read_history(path: Path) -> list[dict[str, str]]:
    """The rows of a metrics.csv, without the columns that a row leaves empty."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no YAML ({' '.join(str(error).split())})") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: no JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds {type(content).__name__}, not metrics by name")
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
