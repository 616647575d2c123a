"""Functions that read and write the YAML, JSON and CSV files of a run folder."""

import csv
import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dml.runtime.checksums import DamageError, seal_text, seal_values, unseal_text, unseal_values
from dml.runtime.configuration import check_parts
from dml.runtime.files import replacing
from dml.runtime.reading import parse_json, parse_yaml, read_bounded

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
    """Write plain values by name to a JSON file, with the checksum of the values and those of other files by name.

    NaN becomes null, because JSON has no NaN. With ``on_disk`` it waits until the disk has the file, see `replacing`.
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


def read_splits(path: Path) -> dict[str, dict[str, str]]:
    """Read the texts by split and class that `dml.runtime.run_folder.RunFolder.write_splits` wrote.

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


def read_curves(path: Path) -> dict[str, list[list[float]]]:
    """Read the curves by name that `dml.runtime.run_folder.RunFolder.write_threshold_curves` wrote.

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
    """Return the end of an error line that tells what a user can do about a damaged file of a run."""
    resuming = shlex.quote(f"resume={run}")
    if path.parent.name == ".hydra":
        if is_resumable:
            return f"delete {path.parent}, and {resuming} takes the overrides from checkpoints/last.ckpt"
        return f"delete {run} and start the run again"
    remedies = {
        "metrics.csv": "delete it to do without the history; nothing else is lost",
        "raw_metrics.json": f"delete it, and {resuming} computes it again",
        "splits.json": "delete it to go on without a comparison of the data with what it was",
    }
    tested = f"{resuming} tests the run again and writes it anew" if is_resumable else "test the checkpoint again"
    return remedies.get(path.name, tested)
