from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from dml.data.layout import Layout
from dml.data.table import ImageTable
from dml.ops.errors import InputError

LAYOUT = Layout(
    name="Cars196",
    tree=(
        "car_ims/ and cars_annos.mat, or cars_train/, cars_test/ and devkit/ with cars_meta.mat, cars_train_annos.mat "
        "and cars_test_annos_withlabels.mat"
    ),
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
)
LAST_OF_TRAINING = 98


def read(root: str | Path | None) -> ImageTable:
    """Cars196 (Krause et al., 2013): classes 1-98 of both official splits are for training, 99-196 for testing.

    Args:
        root: the folder of either official layout: ``car_ims/`` with ``cars_annos.mat``, or ``cars_train/`` and
            ``cars_test/`` (each may be in a folder of the same name once more) with the lists in it or in ``devkit/``.

    Raises:
        InputError: if a list or a folder is missing, or a list can't be parsed.
    """
    folder = LAYOUT.root(root)
    if LAYOUT.find(folder, "car_ims", "cars_train").name == "car_ims":
        meta = LAYOUT.find(folder, "cars_annos.mat")
        parts = [(meta, "relative_im_path", folder)]
    else:
        meta = _of_devkit(folder, "cars_meta.mat")
        parts = [
            (_of_devkit(folder, f"{part}_{ending}"), "fname", LAYOUT.find(folder, f"{part}/{part}", part))
            for part, ending in (("cars_train", "annos.mat"), ("cars_test", "annos_withlabels.mat"))
        ]
    paths: list[str] = []
    ids: list[int] = []
    for path, column, images in parts:
        annotations = _variable(path, "annotations")
        paths += [f"{images}/{name}" for name in _column(annotations, column, path)]
        ids += _whole_numbers(_column(annotations, "class", path), path)
    labels = np.array(ids, dtype=np.int64) - 1
    return ImageTable(
        paths=np.array(paths),
        labels=labels[:, None],
        split=np.where(labels < LAST_OF_TRAINING, "train", "test"),
        levels=("class",),
        names=(tuple(map(str, _variable(meta, "class_names"))),),
        source=" and ".join(str(path) for path, _, _ in parts),
    )


def _of_devkit(folder: Path, name: str) -> Path:
    return LAYOUT.find(folder, f"devkit/{name}", name)


def _variable(path: Path, name: str) -> Any:
    """A variable of a .mat file, one-dimensional."""
    try:
        contents = loadmat(path, variable_names=[name], squeeze_me=True)
    except Exception as error:  # scipy raises whatever it meets in a broken file
        raise InputError(f"{path}: cannot be read as a .mat file ({type(error).__name__})") from error
    if name not in contents:
        raise InputError(f"{path}: no variable {name} in it")
    return np.atleast_1d(contents[name])


def _column(annotations: Any, name: str, path: Path) -> Any:
    if name not in (annotations.dtype.names or ()):
        raise InputError(f"{path}: its annotations have no {name}")
    return annotations[name]


def _whole_numbers(cells: Any, path: Path) -> list[int]:
    for cell in cells:
        if not isinstance(cell, int | float) or cell % 1:
            raise InputError(f"{path}: class {cell!r:.40}, expected a whole number")
    return [int(cell) for cell in cells]
