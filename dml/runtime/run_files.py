"""Functions that read the YAML, JSON and CSV files of a run folder, and tell what is to be done about a damaged one.

What can't be read, or isn't what the function reads, is a ValueError.
"""

import csv
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dml.runtime.checksums import DamageError
from dml.runtime.configuration import check_parts
from dml.runtime.reading import parse_json, parse_yaml, read_bounded

T = TypeVar("T")


def remedy_for(path: Path, run: Path) -> str:
    """Return the end of an error line that tells what a user can do about a damaged file of a run."""
    damaged = path.parent if path.parent.name == ".hydra" else "it"
    return f"delete {damaged}, and {shlex.quote(f'resume={run}')} goes on without"


def _check_kind(content: Any, kind: type[T]) -> T:
    if not isinstance(content, kind):
        raise DamageError(f"it holds {type(content).__name__}, not {kind.__name__}")
    return content


def read_yaml(path: Path, kind: type[T]) -> T:
    """Read the content of a YAML file, which must be of the type ``kind``."""
    try:
        return _check_kind(parse_yaml(read_bounded(path).decode()), kind)
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {error}") from error


def read_configuration(path: Path) -> dict[str, Any]:
    """Read the configuration of a run."""
    config = read_yaml(path, dict)
    check_parts(config)
    return config


def read_runtime(path: Path) -> tuple[dict[str, Any], str]:
    """Read from hydra.yaml the choice of each configuration group, and the working folder; {} and "" without Hydra."""
    content = read_yaml(path, dict)
    try:
        runtime = content["hydra"]["runtime"] if content else {"choices": {}}
        return {str(group): choice for group, choice in runtime["choices"].items()}, str(runtime.get("cwd", ""))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("no hydra.runtime.choices in it") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds values by name."""
    return _check_kind(parse_json(read_bounded(path)), dict)


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
