"""The reading of a data set's table: counts are checked, then a fold is applied."""

import re
from collections.abc import Callable
from functools import partial

from dml.data.image_files.limits import limit_list_bytes
from dml.data.joined_sets import join_tables
from dml.data.table import ImageTable, hold_out_classes, list_training_classes, load
from dml.evaluation.names import SCOPE
from dml.run.building import build
from dml.run.settings import DatasetSettings
from dml.runtime.errors import InputError
from dml.runtime.text import printable


def read_table(dataset: DatasetSettings, max_list_bytes: int, *, needs_fold: bool = True) -> ImageTable:
    """Read and check a data set, and make the fold of the configuration the validation split.

    This happens in each data set of ``dataset.sets`` before they are joined.

    Args:
        dataset: settings of the data set.
        max_list_bytes: largest size of a file that lists images.
        needs_fold: whether fewer training classes than folds are an error; a test does without a validation split.

    Raises:
        InputError: if the data set has a fault.
    """
    with limit_list_bytes(max_list_bytes):
        if dataset.sets is None:
            images = load(
                build(dataset.reader),
                dataset.root,
                name=dataset.name,
                counts=dataset.counts,
                disjoint=dataset.disjoint,
                verify=dataset.verify,
            )
        else:
            images = read_parts(dataset, partial(read_table, max_list_bytes=max_list_bytes, needs_fold=needs_fold))
        if dataset.folds is not None and (needs_fold or len(list_training_classes(images)) >= dataset.folds):
            images = hold_out_classes(images, folds=dataset.folds, fold=dataset.fold)
        return images


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
