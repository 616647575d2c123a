"""The reader of Cars196, whose lists are .mat files."""

from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat, whosmat

from dml.data.contents import LIST_OPTION, current_max_list_bytes, name_list_in_errors, read_list_bytes
from dml.data.layout import Layout
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.reading import check_unpacked

ELEMENT_BYTES = 8
"""Memory that scipy takes for each element of a matrix, of cells and structures too, before it reads the first."""


def read_variable(path: Path, name: str) -> Any:
    """Read a variable of a .mat file as a one-dimensional array."""
    with name_list_in_errors(path):
        content = read_list_bytes(path)
        try:
            shapes = {variable: shape for variable, shape, _ in whosmat(BytesIO(content))}
        except Exception as error:  # scipy doesn't document which exceptions a broken file raises
            raise _broken(path, error) from error
        if name not in shapes:
            raise InputError(f"{path}: no variable {name} in it")
        check_unpacked(ELEMENT_BYTES * prod(shapes[name]), current_max_list_bytes(), LIST_OPTION)
        try:
            variables = loadmat(BytesIO(content), variable_names=[name], squeeze_me=True)
        except MemoryError:
            raise
        except Exception as error:
            raise _broken(path, error) from error
    return np.atleast_1d(variables[name])


def _broken(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: cannot be read as a .mat file ({type(error).__name__})")


LAYOUT = Layout(
    name="Cars196",
    tree=(
        "car_ims/ and cars_annos.mat, or cars_train/, cars_test/ and devkit/ with cars_meta.mat, cars_train_annos.mat "
        "and cars_test_annos_withlabels.mat"
    ),
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
)
LAST_TRAINING_CLASS = 98


def read(root: str | Path | None) -> ImageTable:
    """Read Cars196 (Krause et al., 2013): classes 1-98 of both official splits are for training, 99-196 for testing.

    The root has an official layout: ``car_ims/`` with ``cars_annos.mat``; or ``cars_train/`` and ``cars_test/``, whose
    images may be in a further folder of the same name, with the lists beside them or in ``devkit/``.
    """
    folder = LAYOUT.root(root)
    if LAYOUT.find(folder, "car_ims", "cars_train").name == "car_ims":
        class_file = LAYOUT.find(folder, "cars_annos.mat")
        lists = [(class_file, "relative_im_path", folder)]
    else:
        class_file = _find_in_devkit(folder, "cars_meta.mat")
        lists = [
            (_find_in_devkit(folder, f"{part}_{ending}"), "fname", LAYOUT.find(folder, f"{part}/{part}", part))
            for part, ending in (("cars_train", "annos.mat"), ("cars_test", "annos_withlabels.mat"))
        ]
    names = tuple(map(str, read_variable(class_file, "class_names")))
    paths: list[str] = []
    ids: list[int] = []
    for list_path, column, image_folder in lists:
        annotations = read_variable(list_path, "annotations")
        paths += [f"{image_folder}/{name}" for name in _select_column(annotations, column, list_path)]
        ids += _parse_class_ids(_select_column(annotations, "class", list_path), list_path, len(names))
    labels = np.array(ids, dtype=np.int64) - 1
    return ImageTable(
        paths=np.array(paths),
        labels=labels[:, None],
        split=np.where(labels < LAST_TRAINING_CLASS, "train", "test"),
        levels=("class",),
        names=(names,),
        source=" and ".join(str(list_path) for list_path, _, _ in lists),
    )


def _find_in_devkit(folder: Path, name: str) -> Path:
    return LAYOUT.find(folder, f"devkit/{name}", name)


def _select_column(annotations: Any, name: str, path: Path) -> Any:
    if name not in (annotations.dtype.names or ()):
        raise InputError(f"{path}: its annotations have no {name}")
    return annotations[name]


def _parse_class_ids(cells: Any, path: Path, classes: int) -> list[int]:
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, int | float) or cell % 1 or not 1 <= cell <= classes:
            raise InputError(
                f"{path}, annotation {number}: class {cell!r:.40}, expected a whole number from 1 to {classes}"
            )
    return [int(cell) for cell in cells]
