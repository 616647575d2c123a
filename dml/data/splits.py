"""The drawing of the splits that a user's table lacks, by class, and descriptions of splits."""

import hashlib
import logging
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dml.data.split_names import divide_by_folders
from dml.data.table import TEST_SPLITS, ImageTable, find_shared_classes
from dml.runtime.errors import InputError
from dml.runtime.text import format_count, printable

logger = logging.getLogger(__name__)

FEWEST_CLASSES = 2
"""The smallest number of classes of a drawn split, and of those that are left for training.

A loss compares images of different classes, and where all images are of one class every neighbor is right.
"""
VALIDATION_CLASSES = 4
"""The smallest number of drawn validation classes, unless they are more than a third: two or three chose too badly."""


def complete_splits(table: ImageTable, *, test_fraction: float | None, val_fraction: float, seed: int) -> ImageTable:
    """Draw the splits that a user's table lacks; each drawn split takes whole classes of level 0.

    For each class, a hash of the seed, the name of the fraction and the class name is compared with the fraction. So a
    class stays in its split when other classes are added or removed, in any order and on any machine.
    The number of drawn classes varies around the fraction. It is at least half of the intended number, and so is the
    number of the other classes; the classes whose hashes are nearest to the fraction then change sides. Two
    classes are drawn at least, because the nearest neighbors in a single class are always right, and two remain for
    training. For validation they are at least four, or a third of the training classes. Only where no validation is
    drawn, a single class of two or three may be the test.

    Args:
        test_fraction: fraction of all classes that becomes ``test``, if the table has no split at all; 0 draws
            none, for a model that is to learn from all classes; None takes all, as nothing is trained.
        val_fraction: fraction of the training classes that becomes ``val``, if the table has no ``val``; 0 draws none.
    """
    split = table.split.astype("U7")
    if not (split != "").any():
        folders = [path.rpartition("/")[0] for path in table.paths.tolist()]
        distinct = [*dict.fromkeys(folders)]
        _, splits = divide_by_folders([tuple(folder.split("/")) for folder in distinct], table.source)
        if len({*splits}) > 1:  # a folder above all images is called "test" by chance
            logger.warning("%s: the splits are those that folders in the paths are named like", printable(table.source))
            split_by_folder = dict(zip(distinct, splits, strict=True))
            split[:] = [split_by_folder[folder] for folder in folders]
    present = {*np.unique(split).tolist()} - {""}
    tested = present & {*TEST_SPLITS}
    draws_val = bool(val_fraction) and "val" not in present
    if present <= {"train"}:
        if present and test_fraction is not None:
            logger.warning("%s: has the split train alone, from which the others are drawn", printable(table.source))
        split[:] = "test" if test_fraction is None else "train"
        classes = len(np.unique(table.labels[:, 0]))
        fewest, to_keep = (min(max(number, 1), FEWEST_CLASSES) for number in (classes // 2, classes - 1))
        if draws_val:
            fewest, to_keep = FEWEST_CLASSES, 2 * FEWEST_CLASSES
        if test_fraction:
            split[_draw_classes(table, split, "test_fraction", test_fraction, seed, fewest, to_keep)] = "test"
    elif present == {"train", "val"}:
        logger.warning("%s: has no test split, so val is both validation and test", printable(table.source))
    elif test_fraction is not None and not ("train" in present and tested in ({"test"}, {"query", "gallery"})):
        raise InputError(
            f"{table.source}: has the splits {', '.join(sorted(present))}; train and test are needed, or train, query "
            "and gallery (for a test alone: dataset.reader.test_fraction=null)"
        )
    if draws_val and (split == "train").any():
        trained = len(np.unique(table.labels[split == "train", 0]))
        fewest = max(min(VALIDATION_CLASSES, trained // 3), FEWEST_CLASSES)
        split[_draw_classes(table, split, "val_fraction", val_fraction, seed, fewest, FEWEST_CLASSES)] = "val"
    return replace(table, split=split)


def _draw_classes(
    table: ImageTable, split: NDArray[np.str_], option: str, fraction: float, seed: int, fewest: int, to_keep: int
) -> NDArray[np.bool_]:
    """Draw at least ``fewest`` training classes, so that ``to_keep`` remain -> the mask (N,) of their rows."""
    if not 0 < fraction < 1:
        raise InputError(f"dataset.reader.{option}={fraction}: expected a number between 0 and 1")
    is_training = split == "train"
    labels = np.unique(table.labels[is_training, 0])
    count = len(labels)
    if count < fewest + to_keep:
        raise InputError(
            f"{table.source}: {format_count(count, 'class', 'classes')}, {fewest + to_keep} are needed to draw whole "
            f"classes by {option}; dataset.reader.val_fraction=0 needs fewer, or give the split of each image "
            "(docs/own_data.md), and dataset.disjoint=false if training and test have the same classes"
        )
    names = [table.name_class(label) for label in labels.tolist()]
    hashes = np.array([_hash_to_fraction(seed, option, name) for name in names])
    number = int((hashes < fraction).sum())
    number = max(number, fewest, math.ceil(fraction * count / 2))
    number = min(number, count - max(to_keep, math.ceil((1 - fraction) * count / 2)))
    drawn = labels[np.argsort(hashes, kind="stable")[:number]]
    is_drawn: NDArray[np.bool_] = is_training & np.isin(table.labels[:, 0], drawn)
    return is_drawn


def _hash_to_fraction(seed: int, option: str, name: str) -> float:
    """Return a number from 0 to 1 that depends on the seed, the option and the class name alone."""
    key = f"{seed}\0{option}\0{name}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


def describe_shared_classes(table: ImageTable) -> str:
    """Describe the classes that are in training and in validation; "" if there is none, or no validation."""
    shared = find_shared_classes(table, table.rows("train"), table.rows("val"))
    if not len(shared):
        return ""
    classes = format_count(len(shared), "class is", "classes are")
    return (
        f"{classes} in training too, such as {table.name_class(shared[0])}: the checkpoint isn't chosen on new classes"
    )


def describe_splits(table: ImageTable) -> str:
    """Describe the splits of a table: "train 1,830 images of 366 classes, val 464 of 92, test 2,865 of 573"."""
    numbers = {split: (counts["images"], counts[table.levels[0]]) for split, counts in table.counts().items()}
    parts = [f"{split} {images:,} of {classes:,}" for split, (images, classes) in numbers.items()]
    first, (images, classes) = next(iter(numbers.items()))
    parts[0] = f"{first} {images:,} images of {classes:,} {'class' if classes == 1 else 'classes'}"
    return ", ".join(parts)
