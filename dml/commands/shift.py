"""The job of ``dml shift``: write class splits of growing distance between training and test."""

import json
import shlex
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig
from rich.table import Table

from dml.commands.checked_images import (
    AuditNetwork,
    build_backbone_network,
    check_and_summarize,
    read_part,
    set_for_readable,
    take_readable,
)
from dml.data.class_splits import format_class_splits, name_movable_classes
from dml.data.prepared.prepared_files import hold_preparation_lock
from dml.data.table import SPLITS, TEST_SPLITS, ImageTable
from dml.evaluation.class_shift import ShiftLevel, average_classes, choose_levels, draw_half, reduce_features
from dml.run.prepare_job import make_cache_folder
from dml.run.settings import ShiftSettings, read_settings
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.files import write_text
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import in_markup, printable

CHANGES = ("corrections", "planted")
"""What changes the classes of a data set after their splits are applied."""


def shift(config: DictConfig, _folder: RunFolder, _overrides: list[str]) -> list[ShiftLevel]:
    """Write ``shift-0.csv``, ``shift-1.csv``, ... and ``shift.json``, and print the distance of each level.

    Raises:
        InputError: if an option can't be used, weights can't be had, the data set has a fault, its images can't be
            divided anew by class, too few swaps increase the distance, or another process prepares the data set.
    """
    settings = read_settings(config, ShiftSettings)
    for key in CHANGES:
        if value := getattr(settings.dataset, key):
            raise InputError(f"dataset.{key}={value}: dml shift divides the data set as it is; give it to the training")
    folder = make_cache_folder(settings)
    output = expand_home(settings.output) if settings.output else folder.path
    network = build_backbone_network(settings)
    table, whole_table = read_part(settings)
    labels_by_name = name_movable_classes(table, "dml shift")
    with hold_preparation_lock(folder.path):
        checked = check_and_summarize(settings, table, folder, whole_table)
        readable = take_readable(table, checked).subset(*SPLITS)
        _check_classes(labels_by_name, readable)
        features = network.embed(set_for_readable(settings), readable, folder).double().numpy()
    means = average_classes(features, readable.labels[:, 0])
    is_test = _begin(settings, readable)
    reduced = reduce_features(means, is_test, settings.components)
    levels = choose_levels(reduced, is_test, settings.levels)
    _write_levels(levels, labels_by_name, output, _describe(settings, network, reduced))
    _print_levels(levels, output)
    return levels


def _check_classes(labels_by_name: dict[str, int], readable: ImageTable) -> None:
    known = {*np.unique(readable.labels[:, 0]).tolist()}
    if lost := [name for name, label in labels_by_name.items() if label not in known]:
        raise InputError(f"dml shift: no image of the class {printable(lost[0])!r} can be read; dml prepare lists them")


def _begin(settings: ShiftSettings, table: ImageTable) -> NDArray[np.bool_]:
    """Return whether each class is for the test at level 0, (C,) bool, in the order of the labels."""
    classes = np.unique(table.labels[:, 0])
    if settings.beginning == "drawn":
        return draw_half(len(classes), settings.seed)
    training, test = (np.unique(table.subset(*part).labels[:, 0]) for part in (("train", "val"), TEST_SPLITS))
    if shared := len(np.intersect1d(training, test)):
        raise InputError(f"beginning=data_set: {shared:,} classes are in training and in test; beginning=drawn")
    return np.isin(classes, test)


def _describe(settings: ShiftSettings, network: AuditNetwork, reduced: NDArray[np.float64]) -> dict[str, str | int]:
    return {
        "dataset": str(settings.dataset.name),
        "compared_by": network.description,
        "components": reduced.shape[1],
        "beginning": str(settings.beginning),
        "seed": int(settings.seed),
    }


def _write_levels(
    levels: list[ShiftLevel], labels_by_name: dict[str, int], output: Path, description: dict[str, str | int]
) -> None:
    """Write the files of all levels, and the table of them as JSON."""
    output.mkdir(parents=True, exist_ok=True)
    for number in count(len(levels)):  # an earlier call may have written more levels, of other splits
        if not (output / _name_file(number)).exists():
            break
        (output / _name_file(number)).unlink()
    names = sorted(labels_by_name, key=lambda name: labels_by_name[name])  # the order of the means
    entries = []
    for number, level in enumerate(levels):
        file = _name_file(number)
        sides = {name: "test" if is_test else "train" for name, is_test in zip(names, level.is_test, strict=True)}
        write_text(output / file, format_class_splits(sides))
        moved = level.count_moved(levels[0])
        entries.append(
            {"level": number, "distance": level.distance, "swaps": level.swaps, "moved_classes": moved, "file": file}
        )
    write_text(output / "shift.json", json.dumps(description | {"levels": entries}, indent=2) + "\n")


def _name_file(number: int) -> str:
    return f"shift-{number}.csv"


def _print_levels(levels: list[ShiftLevel], output: Path) -> None:
    number = len(levels[0].is_test)
    shown = Table(title=f"splits of {number:,} classes", title_justify="left", title_style="bold")
    for column in ("level", "distance", "swaps", "classes moved"):
        shown.add_column(column, justify="right")
    for place, level in enumerate(levels):
        moved = level.count_moved(levels[0])
        shown.add_row(str(place), f"{level.distance:.4f}", f"{level.swaps:,}", f"{moved:,}")
    console.print(shown)
    argument = shlex.quote(f"dataset.class_splits={output / _name_file(len(levels) - 1)}")
    console.print(f"[bold]written[/]  {in_markup(output)}: shift-*.csv, shift.json")
    console.print(f"[bold]use[/]      {in_markup(argument)} trains on the last one")
