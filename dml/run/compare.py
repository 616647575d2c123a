"""Finished runs put together: one row a configuration, its metrics over the seeds."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml.evaluation.intervals import Interval, mean_interval
from dml.ops.errors import InputError
from dml.ops.nested import flat, is_below
from dml.ops.run_folder import RUN_KEYS, RunFolder, folders_below
from dml.run.cli import nearest
from dml.run.stored import key_of

SEED = "seed"
NOT_METRICS = ("epoch", "step", "pruned")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        folder: where it is.
        config: its configuration by dotted key, interpolations unresolved: what follows from the seed isn't the seed.
            A run that a sweep has ended early is no measurement of the same: its configuration says "pruned".
        named: the groups' choices and the overridden values, which tell configurations apart in a user's words.
        metrics: the numbers of its metrics.json.
    """

    folder: Path
    config: dict[str, Any]
    named: dict[str, Any]
    metrics: dict[str, float]

    @property
    def configuration(self) -> str:
        """All that is set but the seed."""
        return json.dumps({key: value for key, value in self.config.items() if key != SEED}, sort_keys=True)


@dataclass(frozen=True)
class Row:
    """A configuration's name, what sets it apart from the other rows, and its metrics over the seeds."""

    name: str
    metrics: dict[str, Interval]


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The finished runs in the folders, at any depth: of single runs and of whole sweeps.

    Raises:
        InputError: if a folder holds none.
    """
    runs = []
    for folder in folders:
        found = [run for run in _runs_in(folder) if run.is_finished]
        if not found:
            raise InputError(f"{folder}: no finished run in it; a run's folder holds metrics.json and .hydra/")
        runs += [_read(run) for run in found]
    return runs


def find_unfinished(folders: Iterable[Path]) -> list[Path]:
    """The runs in the folders, at any depth, that have not come to their end: they run, failed or were interrupted."""
    return [run.path for folder in folders for run in _runs_in(folder) if not run.is_finished]


def _runs_in(folder: Path) -> list[RunFolder]:
    """The runs in a folder; an evaluation of one of their checkpoints is no run, unless the folder itself is one."""
    return [run for run in folders_below(folder) if run.path == folder or not run.is_evaluation]


def _read(folder: RunFolder) -> Run:
    values = flat(folder.config)
    choices = {group: choice for group, choice in folder.choices.items() if group not in RUN_KEYS}
    overridden = {key_of(override) for override in folder.overrides}
    metrics = folder.metrics()
    pruned = {"pruned": True} if metrics.get("pruned") else {}
    overrides = {key: value for key, value in values.items() if is_below(key, overridden - {*choices})}
    return Run(
        folder.path,
        config=values | pruned,
        named=choices | overrides | pruned,
        metrics={
            name: value for name, value in metrics.items() if isinstance(value, int | float) and name not in NOT_METRICS
        },
    )


def compare(runs: Sequence[Run]) -> list[Row]:
    """A row a configuration; runs that differ in nothing but the seed share it.

    Raises:
        InputError: if two runs have configuration and seed in common: they are no independent measurements.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.configuration, []).append(run)
    names = _names([group[0] for group in groups.values()])
    for group in groups.values():
        _check_seeds(group)
    return [Row(name, _over_seeds(group)) for name, group in zip(names, groups.values(), strict=True)]


def _over_seeds(group: Sequence[Run]) -> dict[str, Interval]:
    shared = [name for name in group[0].metrics if all(name in run.metrics for run in group)]
    return {name: mean_interval([run.metrics[name] for run in group]) for name in shared}


def _check_seeds(group: Sequence[Run]) -> None:
    first: dict[Any, Path] = {}
    for run in group:
        seed = run.config.get(SEED)
        if seed in first:
            raise InputError(f"{run.folder}: the same configuration and seed={seed} as {first[seed]}; give one of them")
        first[seed] = run.folder


def _names(runs: Sequence[Run]) -> list[str]:
    """What sets each configuration apart: the choices and overridden values that are not the same in all."""
    keys = dict.fromkeys(key for run in runs for key in run.named if key != SEED)
    values = [{key: str(run.named.get(key, run.config.get(key, ""))) for key in keys} for run in runs]
    telling = [key for key in keys if len({value[key] for value in values}) > 1] or ["dataset", "loss"]
    # another loss, say, needn't have the value at all
    names = [", ".join(f"{key}={value[key]}" for key in telling if value[key]) for value in values]
    # the same words, though something else differs, such as conf/ itself: the folder tells them apart
    return [name if names.count(name) == 1 else f"{name} ({run.folder})" for name, run in zip(names, runs, strict=True)]


def markdown(rows: Sequence[Row], metrics: Sequence[str]) -> str:
    """The chosen metrics in percent, the best of the first on top: mean ± half the 95 % interval (standard deviation).

    Raises:
        InputError: if no row has one of the metrics.
    """
    for metric in metrics:
        if not any(metric in row.metrics for row in rows):
            known = {name for row in rows for name in row.metrics}
            raise InputError(f"metric {metric}: no run has it{nearest(metric, known)}")
    ordered = sorted(rows, key=lambda row: -row.metrics[metrics[0]].mean if metrics[0] in row.metrics else 1)
    lines = [["run", "seeds", *metrics], ["---", "---:", *("---:" for _ in metrics)]]
    for row in ordered:
        cells = [_cell(row.metrics, metric) for metric in metrics]
        lines.append([row.name, str(max(value.runs for value in row.metrics.values())), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(metrics: Mapping[str, Interval], metric: str) -> str:
    if metric not in metrics:
        return "–"
    value = metrics[metric]
    mean = f"{100 * value.mean:.1f}"
    return mean if value.runs == 1 else f"{mean} ± {100 * value.half_width:.1f} ({100 * value.deviation:.1f})"


def csv_lines(rows: Sequence[Row]) -> list[list[Any]]:
    """Every metric of every row in full, a header first."""
    header = ["run", "metric", "runs", "mean", "standard_deviation", "low_95", "high_95"]
    return [header] + [
        [row.name, metric, *value[:3], value.mean - value.half_width, value.mean + value.half_width]
        for row in rows
        for metric, value in row.metrics.items()
    ]
