"""Functions for the readers of a user's data: they number classes by name and draw splits by class."""

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dml.data.table import SPLITS, TEST_SPLITS, ImageTable
from dml.ops.errors import InputError
from dml.ops.text.counts import format_count

SPLIT_NAMES = {name: name for name in SPLITS} | {
    "training": "train",
    "valid": "val",
    "validation": "val",
    "testing": "test",
}
"""The split that a name stands for: its own name, or a name that is common elsewhere."""
_SPLIT_PREFIX = re.compile(rf"({'|'.join(SPLIT_NAMES)})(sets?|images?|imgs?|data)?(?![^\W\d_])", re.IGNORECASE)
"""The word of a split at the start of a name; no further letter follows, so that ``valley`` isn't ``val``."""
FEWEST_CLASSES = 2
"""The smallest number of classes of a drawn split, and of those that are left for training.

A loss compares images of different classes, and where all images are of one class every neighbour is right.
"""
VALIDATION_CLASSES = 4
"""The smallest number of drawn validation classes, unless they are more than a third: two or three chose too badly."""


def find_split_prefix(name: str) -> str:
    """Return the split that the name of a file or folder begins with; an empty string if there is none.

    >>> [find_split_prefix(name) for name in ("train-0.tar", "Test_images", "validation", "valset2", "valley", "a-val")]
    ['train', 'test', 'val', 'val', '', '']
    """
    match = _SPLIT_PREFIX.match(name)
    return SPLIT_NAMES[match[1].lower()] if match else ""


def number_classes(names: Iterable[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Number classes in the order of their sorted names, which is the same on every machine.

    >>> labels, classes = number_classes(["cat", "ant", "cat"])
    >>> labels.tolist(), classes
    ([1, 0, 1], ('ant', 'cat'))

    Args:
        names: class name of each image, N strings.

    Returns:
        The labels (N,) and the class names, indexed by label.
    """
    classes, labels = np.unique(np.array([*names], dtype=np.str_), return_inverse=True)
    return labels.astype(np.int64), tuple(classes.tolist())


def complete_splits(table: ImageTable, *, test_fraction: float, val_fraction: float, seed: int) -> ImageTable:
    """Draw the splits that a user's table lacks; each drawn split takes whole classes of level 0.

    For each class, a hash of the seed, the name of the fraction and the class name is compared with the fraction. So a
    class stays in its split when other classes are added or removed, in any order and on any machine.
    The number of drawn classes varies around the fraction. It is at least half of the intended number, and so is the
    number of the other classes; the classes whose hashes are nearest to the fraction then change sides. Two
    classes are drawn at least, because the nearest neighbours in a single class are always right, and two remain for
    training. For validation they are at least four, or a third of the training classes. Only where no validation is
    drawn, a single class of two or three may be the test.

    Args:
        table: a table with splits, or with an empty string as the split of every row.
        test_fraction: fraction of all classes that becomes ``test``, if the table has no split at all; 0 draws
            none, for a model that is to learn from all classes.
        val_fraction: fraction of the training classes that becomes ``val``, if the table has no ``val``; 0 draws none.
        seed: seed of the draws, which depend only on it, the fractions and the class names.

    Raises:
        InputError: if there are too few classes, a fraction isn't between 0 and 1, or the table has splits with which
            a model can't be both trained and tested.
    """
    split = table.split.astype("U7")
    draws_val = bool(val_fraction) and not (split == "val").any()
    has_test = True
    if not (split != "").any():
        has_test = test_fraction != 0
        split[:] = "train"
        fewest, to_keep = _find_smallest_sizes(len(np.unique(table.labels[:, 0])), draws_val=draws_val)
        if has_test:
            split[_draw_classes(table, split, "test_fraction", test_fraction, seed, fewest, to_keep)] = "test"
    present = {*np.unique(split).tolist()}
    tested = present & {*TEST_SPLITS}
    if has_test and not ("train" in present and tested in ({"test"}, {"query", "gallery"})):
        raise InputError(
            f"{table.source}: has the splits {', '.join(sorted(present))}; "
            "train and test are needed, or train, query and gallery"
        )
    if draws_val:
        trained = len(np.unique(table.labels[split == "train", 0]))
        fewest = max(min(VALIDATION_CLASSES, trained // 3), FEWEST_CLASSES)
        split[_draw_classes(table, split, "val_fraction", val_fraction, seed, fewest, FEWEST_CLASSES)] = "val"
    return replace(table, split=split, val_fraction=val_fraction if draws_val else 0.0)


def _find_smallest_sizes(classes: int, *, draws_val: bool) -> tuple[int, int]:
    """Return how many classes a drawn test has at least, and how many it leaves at least."""
    if draws_val:
        return FEWEST_CLASSES, 2 * FEWEST_CLASSES
    return min(max(classes // 2, 1), FEWEST_CLASSES), min(max(classes - 1, 1), FEWEST_CLASSES)


def _draw_classes(
    table: ImageTable, split: NDArray[np.str_], option: str, fraction: float, seed: int, fewest: int, to_keep: int
) -> NDArray[np.bool_]:
    """Draw a fraction of the training classes.

    Args:
        table: the table that has the labels.
        split: (N,) the current split of each row.
        option: name of the reader's option that sets ``fraction``, for the hashes and for error messages.
        fraction: fraction of the training classes to draw.
        seed: seed of the draw.
        fewest: smallest number of classes to draw.
        to_keep: number of training classes that must not be drawn.

    Returns:
        The mask (N,) of the rows of the drawn classes.
    """
    if not 0 < fraction < 1:
        raise InputError(f"dataset.reader.{option}={fraction}: expected a number between 0 and 1")
    is_training = split == "train"
    labels = np.unique(table.labels[is_training, 0])
    count = len(labels)
    if count < fewest + to_keep:
        raise InputError(_describe_lack(table.source, count, option, fewest, to_keep))
    names = [table.name_class(label) for label in labels.tolist()]
    hashes = np.array([_hash_to_fraction(seed, option, name) for name in names])
    number = int((hashes < fraction).sum())
    number = max(number, fewest, math.ceil(fraction * count / 2))
    number = min(number, count - max(to_keep, math.ceil((1 - fraction) * count / 2)))
    drawn = labels[np.argsort(hashes, kind="stable")[:number]]
    is_drawn: NDArray[np.bool_] = is_training & np.isin(table.labels[:, 0], drawn)
    return is_drawn


def _hash_to_fraction(seed: int, option: str, name: str) -> float:
    """Return a number from 0 to 1 that depends on the seed, the option and the class name alone.

    The name is hashed in its composed form (NFC), because file systems differ in how they write an accent.
    """
    key = f"{seed}\0{option}\0{unicodedata.normalize('NFC', name)}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


def _describe_lack(source: str, count: int, option: str, fewest: int, to_keep: int) -> str:
    """Return the error line for a data set with too few classes to draw some of them."""
    classes, needed = "class" if count == 1 else "classes", fewest + to_keep
    if option == "val_fraction":
        return (
            f"{source}: {count} training {classes}, {needed} are needed to draw val_fraction of them; "
            "dataset.reader.val_fraction=0 trains without a validation split"
        )
    needs_val = to_keep > FEWEST_CLASSES
    parts = f"{fewest} each for training, validation and test" if needs_val else "1 for training and 1 for test"
    remedy = (
        "dataset.reader.val_fraction=0, which needs no validation, would do"
        if needs_val and count >= to_keep
        else "give the split of each image (docs/own_data.md), and dataset.disjoint=false if training and test have "
        "the same classes"
    )
    return f"{source}: {count} {classes}, {needed} are needed to draw whole classes: {parts}; {remedy}"


def describe_shared_classes(table: ImageTable) -> str:
    """Describe the classes that are in training and in validation; "" if there is none, or no validation."""
    shared = np.intersect1d(*(table.labels[table.rows(split), 0] for split in ("train", "val")))
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
    rule = f"; classes were drawn for val by their names, each with probability {table.val_fraction:g}"
    return ", ".join(parts) + (rule if table.val_fraction else "")
