"""The reading of a data set's table: counts are checked, then folds and corrections are applied."""

import re
from collections.abc import Callable
from functools import partial

from pytorch_lightning.utilities import rank_zero_only

from dml.data.corrections import apply_corrections, read_corrections
from dml.data.image_files.limits import limit_list_bytes
from dml.data.joined_sets import join_tables
from dml.data.table import ImageTable, hold_out_classes, list_training_classes, load
from dml.evaluation.names import SCOPE
from dml.run.building import build
from dml.run.settings import DatasetSettings
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.text import in_markup, printable


def read_table(
    dataset: DatasetSettings, max_list_bytes: int, *, needs_fold: bool = True, needs_labels: bool = True
) -> ImageTable:
    """Read and check a data set, make the fold of the configuration the validation split, and apply what changes it.

    The published counts are those of the data set without corrections. The classes are divided into folds before the
    corrections, which therefore leave all other classes in their splits. The remaining rules are checked on the
    corrected table. All of this happens in each data set of ``dataset.sets`` before they are joined.

    Args:
        dataset: settings of the data set.
        max_list_bytes: largest size of a file that lists images.
        needs_fold: whether fewer training classes than folds are an error; a test does without a validation split.
        needs_labels: whether training images without a label are an error.

    Raises:
        InputError: if the data set has a fault, or a correction can't be applied.
    """
    with limit_list_bytes(max_list_bytes):
        if dataset.sets is None:
            images = load(
                build(dataset.reader),
                dataset.root,
                name=dataset.name,
                counts=dataset.counts,
                disjoint=dataset.disjoint and dataset.corrections is None,
                verify=dataset.verify,
            )
        else:
            images = read_parts(dataset, partial(read_table, max_list_bytes=max_list_bytes, needs_fold=needs_fold))
        if images.is_unlabeled.any():
            _check_unlabeled(dataset, needs_labels=needs_labels)
        if dataset.folds is not None and (needs_fold or len(list_training_classes(images)) >= dataset.folds):
            images = hold_out_classes(images, folds=dataset.folds, fold=dataset.fold)
        return images if dataset.corrections is None else _correct(dataset, dataset.corrections, images)


def _check_unlabeled(dataset: DatasetSettings, *, needs_labels: bool) -> None:
    """Refuse what needs the labels of training images that have none."""
    settings = ("folds", "corrections")
    if needing := [name for name in settings if getattr(dataset, name) is not None]:
        raise InputError(f"dataset.{needing[0]}: needs the labels of training images, and some have none; null")
    if needs_labels:
        line = "training images without labels, which only dml train does without, and not in dataset=many"
        raise InputError(f"dataset={dataset.name}: {line}")


def read_parts(dataset: DatasetSettings, read: Callable[[DatasetSettings], ImageTable]) -> ImageTable:
    """Read the data sets of ``dataset.sets`` by a function of their settings, and join them; any other one, read it.

    Raises:
        InputError: if ``dataset.sets`` can't be used, or a data set has a fault; the line names it.
    """
    if dataset.sets is None:
        return read(dataset)
    if not dataset.sets or dataset.reader is not None:
        raise InputError("dataset.sets: dataset=many joins what dataset.sets.NAME=CHOICE adds, such as emoji=emoji")
    tables: dict[str, ImageTable] = {}
    for name, part in dataset.parts.items():
        if SCOPE.fullmatch(name) or "/" in name:
            raise InputError(f"dataset.sets.{printable(name)}: metrics have this name; give the data set another one")
        try:
            tables[name] = read(part)
        except InputError as error:
            raise InputError(re.sub(r"(?<![\w./])dataset\.", f"dataset.sets.{name}.", str(error))) from error
    return join_tables(tables)


def _correct(dataset: DatasetSettings, file: str, images: ImageTable) -> ImageTable:
    """Apply the corrections, print one line of what they change, and check the result."""
    corrected, counts = apply_corrections(images, read_corrections(file), dataset.root)
    rank_zero_only(console.print)(f"[bold]corrections[/]  {in_markup(counts.describe())} ({in_markup(file)})")
    name = f"{dataset.name}, corrected by {file}"
    return load(lambda _: corrected, dataset.root, name=name, disjoint=dataset.disjoint, verify=dataset.verify)
