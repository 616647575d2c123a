import csv
import io
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.table import ImageTable, hold_out_classes
from dml.ops.errors import InputError
from dml.ops.paths import expand_home

LEVELS = ("emoji", "subgroup", "group")


def read(root: str | Path | None = None) -> ImageTable:
    """Emoji drawn by six designers: a class is an emoji, its images are their drawings, 64 x 64 on white.

    Half of each subgroup's classes are for training, half for testing; a fifth of the training classes, fold 0
    of five, is ``val``.

    Args:
        root: the zip file that ``scripts/build_emoji.py`` writes; None is the one that comes with the package.

    Raises:
        InputError: if ``root`` is no such file.
    """
    path = expand_home(root) if root else Path(str(resources.files("dml.data") / "assets" / "emoji.zip"))
    if path.suffix != ".zip":  # what `read_image` knows an archive by
        raise InputError(f"dataset.root={path}: give the .zip file that scripts/build_emoji.py writes")
    try:
        with zipfile.ZipFile(path) as archive, archive.open("table.csv") as file:
            rows = list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")))
        codes = [np.unique([row[level] for row in rows], return_inverse=True) for level in LEVELS]
        names = {row["emoji"]: row["name"] for row in rows}
        paths = np.array([f"{path}/{row['path']}" for row in rows])
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"dataset.root={path}: not an archive that scripts/build_emoji.py writes (table.csv and images/)"
        ) from error

    labels = np.stack([inverse for _, inverse in codes], axis=1).astype(np.int64)
    table = ImageTable(
        paths=paths,
        labels=labels,
        split=_halves(labels),
        levels=LEVELS,
        source=str(path),
        names=(tuple(names[str(code)] for code in codes[0][0]), *(tuple(map(str, c)) for c, _ in codes[1:])),
    )
    return hold_out_classes(table)


def _halves(labels: NDArray[np.int64]) -> NDArray[np.str_]:
    """Splits the classes of each subgroup in half at random; the odd ones go to train and test in turn."""
    classes, first = np.unique(labels[:, 0], return_index=True)
    shuffled = np.random.default_rng(0).permutation(len(classes))
    by_subgroup = shuffled[np.argsort(labels[first[shuffled], 1], kind="stable")]
    split = np.empty(len(classes), dtype="U5")
    split[by_subgroup[0::2]], split[by_subgroup[1::2]] = "train", "test"
    return split[labels[:, 0]]
