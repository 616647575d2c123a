"""The metrics of the claims' runs in one small file, from which every interval can be computed without training."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dml.ops.errors import InputError
from dml.ops.filesystem.files import write_text
from dml.ops.filesystem.locks import replacing_alone
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.plans import PlannedRun

KEPT_METRICS = ("level0/recall@1", "level0/map@r", "h_ap", "asi", "ndcg")
"""Ends of the names of the metrics that are kept, of the whole embedding and of each head."""

DIGITS = 5
"""Decimals of the metrics, which are fractions."""

VALIDATION_FOLDER = "val"
"""The folder, inside the folder of a run, with the run's metrics on the validation classes."""

Key = tuple[str, int, str]
"""The training as it is written behind ``experiment=``, the seed, and the split."""


class StoredMetrics(NamedTuple):
    """The metrics of a run, and the hash of its configuration, which changes with the experiment's values."""

    configuration: str
    metrics: Mapping[str, float]


class ClaimResults:
    """The metrics of runs: from their folders where these are finished, else from a file that earlier runs filled.

    Args:
        path: the file, which needn't exist.

    Raises:
        InputError: if the file isn't one that `write` wrote.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stored = _read(path)
        self._found: dict[Key, StoredMetrics] = {}

    def find_metrics(self, run: PlannedRun, split: str) -> Mapping[str, float] | None:
        """Return the metrics of a run on the classes of "test" or "val", fractions; None if nobody has them.

        Stored metrics of a training whose configuration has changed since are not those of the run.
        """
        key = (shlex.join([run.training.experiment, *run.training.overrides]), run.seed, split)
        folder = RunFolder(validation_folder(run) if split == "val" else run.folder)
        if key not in self._found and folder.is_finished:
            metrics = {
                name: round(value, DIGITS) for name, value in folder.metrics().items() if name.endswith(KEPT_METRICS)
            }
            self._found[key] = StoredMetrics(run.configuration, metrics)
        stored = self._found.get(key) or self._stored.get(key)
        return stored.metrics if stored is not None and stored.configuration == run.configuration else None

    def write(self) -> None:
        """Write all metrics, each run on a line, beside those that another command has written meanwhile."""
        with replacing_alone(self.path):
            lines = [
                json.dumps({"training": training, "seed": seed, "split": split} | stored._asdict())
                for (training, seed, split), stored in sorted((_read(self.path) | self._found).items())
            ]
            write_text(self.path, "[\n" + ",\n".join(lines) + "\n]\n")


def _read(path: Path) -> dict[Key, StoredMetrics]:
    """Read the metrics that `ClaimResults.write` wrote; none if there is no file.

    Raises:
        InputError: if it is another file.
    """
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {
            (entry["training"], entry["seed"], entry["split"]): StoredMetrics(entry["configuration"], entry["metrics"])
            for entry in entries
        }
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: no results of the claims ({error!r}); delete it, or take it from git") from error


def validation_folder(run: PlannedRun) -> Path:
    """Return the folder of a run's metrics on the validation classes."""
    return run.folder / VALIDATION_FOLDER
