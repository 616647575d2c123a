"""The paths of the files of a run folder, and functions that read and write its YAML, JSON and CSV files."""

import csv
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dml.runtime.checksums import DamageError, seal_text, seal_values, unseal_text, unseal_values
from dml.runtime.configuration import check_parts
from dml.runtime.files import replacing
from dml.runtime.reading import parse_json, parse_yaml, read_bounded


class RunPaths:
    """The paths of the files of a run, none of which need exist.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def last_checkpoint(self) -> Path:
        """The path of the checkpoint from which the run is resumed."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best_checkpoint(self) -> Path:
        """The path of the checkpoint with the best validation."""
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def first_checkpoint(self) -> Path:
        """The path of the checkpoint from before the first step."""
        return self.path / "checkpoints" / "first.ckpt"

    @property
    def metrics_file(self) -> Path:
        """The path of the final metrics, which are written after all other files."""
        return self.path / "metrics.json"

    @property
    def history_file(self) -> Path:
        """The path of the history: the metrics over the steps."""
        return self.path / "metrics.csv"

    @property
    def raw_metrics_file(self) -> Path:
        """The path of the metrics of the backbone's features, which are computed before the first step."""
        return self.path / "raw_metrics.json"

    @property
    def queries_file(self) -> Path:
        """The path of the table of each test query's metrics and nearest neighbors."""
        return self.path / "per_query.parquet"

    @property
    def report_file(self) -> Path:
        """The path of the report."""
        return self.path / "report.html"

    @property
    def picture_file(self) -> Path:
        """The path of the picture of some queries and their nearest neighbors."""
        return self.path / "retrieval.png"

    @property
    def threshold_curves_file(self) -> Path:
        """The path of the error rates of all thresholds, which the report draws."""
        return self.path / "threshold_curves.json"

    @property
    def compression_file(self) -> Path:
        """The path of the metrics of smaller vectors, which ``dml compress`` writes."""
        return self.path / "compression.json"

    @property
    def fixed_neighbors_file(self) -> Path:
        """The path of the test images' neighbors before the last stage (``evaluation.fixed_neighbors``)."""
        return self.path / "fixed_neighbors.npz"

    @property
    def evaluations_folder(self) -> Path:
        """The path of the folder of the evaluations of the run's checkpoints."""
        return self.path / "evaluations"

    @property
    def splits_file(self) -> Path:
        """The path of the summary of the data set that the run began with."""
        return self.path / "splits.json"

    @property
    def config_file(self) -> Path:
        """The path of the configuration, in which interpolations aren't resolved."""
        return self.path / ".hydra" / "config.yaml"

    @property
    def hydra_file(self) -> Path:
        """The path of Hydra's configuration, which holds the choice of each configuration group."""
        return self.path / ".hydra" / "hydra.yaml"

    @property
    def overrides_file(self) -> Path:
        """The path of the overrides: the arguments of the command line."""
        return self.path / ".hydra" / "overrides.yaml"


T = TypeVar("T")


def write_sealed_text(path: Path, text: str) -> None:
    """Write a text, such as YAML, below a line that holds its checksum."""
    with replacing(path) as partial:
        partial.write_bytes(seal_text(text))


def read_sealed_text(path: Path) -> str:
    """Read a text that `write_sealed_text` wrote, or a text without a checksum, which older versions wrote.

    Raises:
        DamageError: if the text isn't as it was written.
    """
    try:
        return unseal_text(read_bounded(path))
    except ValueError as error:
        raise DamageError(str(error)) from error


def read_yaml(path: Path, kind: type[T]) -> T:
    """Read the content of a YAML file, which must be of the type ``kind``.

    Raises:
        DamageError: if the content is of another type, or isn't as it was written.
    """
    try:
        content = parse_yaml(read_sealed_text(path))
    except (yaml.YAMLError, ValueError) as error:  # a date such as 2000-13-01 is a ValueError
        raise DamageError(f"no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, kind):
        raise DamageError(f"it holds {type(content).__name__}, not {kind.__name__}")
    return content


def read_configuration(path: Path) -> dict[str, Any]:
    """Read the configuration of a run.

    Raises:
        DamageError: if it isn't as it was written, or no run has one of this kind.
    """
    config = read_yaml(path, dict)
    try:
        check_parts(config)
    except ValueError as error:
        raise DamageError(str(error)) from error
    return config


def read_metrics(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read metrics by name and checksums, as `read_values` does.

    Raises:
        DamageError: if the file isn't as it was written, or a metric isn't a number.
    """
    values, checksums = read_values(path)
    try:
        check_metrics(values)
    except ValueError as error:
        raise DamageError(str(error)) from error
    return values, checksums


def check_metrics(values: Mapping[str, Any]) -> None:
    """Make sure that metrics, whose names hold a slash, are numbers; facts about the test may be texts.

    Raises:
        ValueError: if one isn't.
    """
    for name, value in values.items():
        if "/" in name and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{name} is {value!r}, not a number")


def write_values(path: Path, values: Mapping[str, Any], checksums: Mapping[str, str], *, on_disk: bool = False) -> None:
    """Write values by name to a JSON file, together with checksums.

    Args:
        path: path of the file.
        values: plain values by name. NaN becomes null, because JSON has no NaN.
        checksums: checksums of other files, by file name; the checksum of the values is added to them.
        on_disk: whether to wait until the disk has the file, see `replacing`.
    """
    with replacing(path, on_disk=on_disk) as partial:
        text = json.dumps(seal_values(replace_nan(values), path.name, checksums), indent=2)
        partial.write_text(f"{text}\n", encoding="utf-8")


def read_values(path: Path, *, may_nest: bool = False) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the values and the checksums of other files that `write_values` wrote; older versions wrote no checksums.

    A null is NaN.

    Raises:
        DamageError: if the values aren't as they were written, or one is a list or dictionary without ``may_nest``.
    """
    try:
        content = parse_json(read_bounded(path))
    except ValueError as error:
        raise DamageError(f"no JSON: {error}") from error
    if not isinstance(content, dict):
        raise DamageError(f"it holds {type(content).__name__}, not values by name")
    values, checksums = unseal_values(content, path.name)
    nested = [key for key, value in values.items() if isinstance(value, dict | list)]
    if nested and not may_nest:
        raise DamageError(f"{nested[0]!r} is no number and no word")
    return restore_nan(values), checksums


def replace_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name with None in place of NaN, which JSON doesn't have."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


def restore_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `replace_nan` was given."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def write_splits(path: Path, splits: Mapping[str, Mapping[str, str]]) -> None:
    """Write a text for each class of each split to a JSON file, under keys such as "train/apple"."""
    write_values(path, {f"{split}/{name}": text for split, part in splits.items() for name, text in part.items()}, {})


def read_splits(path: Path) -> dict[str, dict[str, str]]:
    """Read the texts by split and class that `write_splits` wrote.

    Raises:
        DamageError: if the file isn't as it was written, or holds anything else.
    """
    splits: dict[str, dict[str, str]] = {}
    for key, text in read_values(path)[0].items():
        split, slash, name = key.partition("/")
        if not slash or not isinstance(text, str) or not text:
            raise DamageError(f"{key!r} isn't a class of a split")
        splits.setdefault(split, {})[name] = text
    return splits


def write_curves(path: Path, curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Write curves, each of which has rows of numbers, to a JSON file, under keys such as "test/0"."""
    rows = {
        f"{name}/{row}": " ".join(map(repr, map(float, numbers)))
        for name, part in curves.items()
        for row, numbers in enumerate(part)
    }
    write_values(path, rows, {})


def read_curves(path: Path) -> dict[str, list[list[float]]]:
    """Read the curves by name that `write_curves` wrote.

    Raises:
        DamageError: if the file isn't as it was written, or holds anything else.
    """
    curves: dict[str, list[list[float]]] = {}
    for key, text in read_values(path)[0].items():
        name, _, row = key.rpartition("/")
        rows = curves.setdefault(name, [])
        if not name or row != str(len(rows)) or not isinstance(text, str):
            raise DamageError(f"{key!r} isn't a row of a curve")
        try:
            rows.append([float(number) for number in text.split()])
        except ValueError as error:
            raise DamageError(f"{key!r}: {error}") from error
    return curves


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file of numbers that has a column "step".

    Returns:
        The cells of each row by column, without the columns in which the row is empty.

    Raises:
        DamageError: if a cell isn't a number, a row has too few or too many cells, or the steps don't increase.
    """
    number, previous_step = 1, -1
    rows: list[dict[str, str]] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file, strict=True)
            header = next(lines, None)
            # Older versions wrote an empty header if no step had been logged.
            if header is None or (header and "step" not in header) or len({*header}) < len(header):
                raise DamageError("its first line doesn't name the columns")
            for line in lines:
                number += 1
                rows.append({name: value for name, value in zip(header, line, strict=True) if value})
                previous_step = _check_row(rows[-1], previous_step)
    except (csv.Error, ValueError, KeyError) as error:
        raise DamageError(f"line {number}: {' '.join(str(error).split())}") from error
    return rows


def _check_row(row: Mapping[str, str], previous_step: int) -> int:
    """Make sure that a row holds numbers and a step after the previous one; return the step."""
    for value in row.values():
        float(value)
    step = int(row["step"])
    if step <= previous_step:
        raise ValueError(f"step {step} after step {previous_step}")
    return step


def remedy_for(path: Path, run: Path, *, is_resumable: bool) -> str:
    """Return the end of an error line that tells what a user can do about a damaged file of a run.

    Args:
        path: path of the damaged file.
        run: path of the run folder.
        is_resumable: whether the run has a checkpoint from which it can be resumed.
    """
    resuming = shlex.quote(f"resume={run}")
    if path.parent.name == ".hydra":
        if is_resumable:
            return f"delete {path.parent}, and {resuming} takes the overrides from checkpoints/last.ckpt"
        return f"delete {run} and start the run again"
    if path.name == "metrics.csv":
        return "delete it to do without the history; nothing else is lost"
    if path.name == "raw_metrics.json":
        return f"delete it, and {resuming} computes it again"
    if path.name == "compression.json":
        return f"delete it, and dml compress {run} writes it anew"
    if path.name == "splits.json":
        return "delete it to go on without a comparison of the data with what it was"
    if is_resumable:
        return f"{resuming} tests the run again and writes it anew"
    return "test the checkpoint again"
