"""The reader of the emoji that come with the package."""

import csv
import io
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.contents import LIST_OPTION, current_max_list_bytes, read_zip_member
from dml.data.readers.folder import name_reader
from dml.data.table import ImageTable, hold_out_classes
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.reading import RefusedFileError, check_regular

LEVELS = ("emoji", "subgroup", "group")


def read(root: str | Path | None = None) -> ImageTable:
    """Read emoji that six designers have drawn: a class is an emoji, and its images are the drawings, 64 x 64 on white.

    Half of the classes of each subgroup are for training and half for testing. A fifth of the training classes, fold 0
    of five, is ``val``. The root is a zip file by ``scripts/build_emoji.py``; None is the one of the package.
    """
    path = expand_home(root) if root else Path(str(resources.files("dml.data") / "assets" / "emoji.zip"))
    if path.suffix != ".zip":  # `read_image` recognizes an archive by this ending
        meant = "give the .zip file that scripts/build_emoji.py writes to dataset=emoji, the default"
        raise InputError(f"dataset.root={path}: {meant}; {name_reader(path)}")
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            content = read_zip_member(archive, "table.csv", current_max_list_bytes(), LIST_OPTION)
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8"), newline="")))
        classes = [np.unique([row[level] for row in rows], return_inverse=True) for level in LEVELS]
        names = {row["emoji"]: row["name"] for row in rows}
        paths = np.array([f"{path}/{row['path']}" for row in rows])
    except RefusedFileError as error:
        raise InputError(f"dataset.root={path}: not an archive that can be read: {error}") from error
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"dataset.root={path}: not an archive that scripts/build_emoji.py writes (table.csv and images/); "
            f"{name_reader(path)}"
        ) from error

    labels = np.stack([level_labels for _, level_labels in classes], axis=1).astype(np.int64)
    emoji_names = tuple(names[str(emoji)] for emoji in classes[0][0])
    table = ImageTable(
        paths=paths,
        labels=labels,
        split=_split_in_half(labels),
        levels=LEVELS,
        source=str(path),
        names=(emoji_names, *(tuple(map(str, level_classes)) for level_classes, _ in classes[1:])),
    )
    return hold_out_classes(table)


def _split_in_half(labels: NDArray[np.int64]) -> NDArray[np.str_]:
    """Divide the classes of each subgroup in half at random; the odd ones go to train and test in turn. -> (N,)"""
    classes, first = np.unique(labels[:, 0], return_index=True)
    shuffled = np.random.default_rng(0).permutation(len(classes))
    by_subgroup = shuffled[np.argsort(labels[first[shuffled], 1], kind="stable")]
    split = np.empty(len(classes), dtype="U5")
    split[by_subgroup[0::2]], split[by_subgroup[1::2]] = "train", "test"
    return split[labels[:, 0]]
