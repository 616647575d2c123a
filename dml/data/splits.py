"""Functions for the readers of a user's data: they name and number classes, and draw splits by class."""

import hashlib
import logging
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.data.layout import to_text
from dml.data.table import SPLITS, TEST_SPLITS, ImageTable, compose_name, find_shared_classes
from dml.runtime.errors import InputError
from dml.runtime.text import format_count, printable

logger = logging.getLogger(__name__)

SPLIT_WORDS = {
    "train": "train training trainval trn learning",
    "val": "val valid validation validate dev devel development",
    "test": "test testing tst holdout heldout privatetest",
    "query": "query queries probe probes",
    "gallery": "gallery galleries enrol enroll enrolled enrolment enrollment reference references database",
    "eval": "eval evaluation publictest",
}
"""The words that stand for each split; "eval" is the test, or the validation where another word is the test."""
_SPLIT_WORD = re.compile(
    f"(?:is)?(?:{'|'.join(f'(?P<{split}>{words})' for split, words in SPLIT_WORDS.items())})".replace(" ", "|")
    + "(?:s|sets?|images?|imgs?|data)?"
)
_PLAIN_WORD = re.compile(
    "bbox|bounding|box(es)?|crop(s|ped)?|data(sets?)?|files?|for|images?|imgs?|in|is|list|names?|of|photos?|"
    "pictures?|sets?|splits?|the"
)
"""Words that change nothing beside that of a split."""
SPLIT_COLUMN = re.compile(
    r"(?P<surely>(.*[ _-])?(splits?|partition))|subset|(data)?set|phase|mode|usage|stage|evaluation[ _-]?status",
    re.IGNORECASE,
)
"""Names of columns that hold words of splits, surely or perhaps."""
TRUE, FALSE = {"true", "t", "yes", "y", "1", "1.0"}, {"false", "f", "no", "n", "0", "0.0"}
"""What stands in a column such as ``is_valid``, in lower case."""
MISSING_NAMES = frozenset(("-", "#n/a", "<na>", "n/a", "na", "nan", "none", "null"))
"""What programs write in place of a class that is missing, in lower case."""
_LENGTHENED = re.compile(r"(?:(-?(?:0|[1-9]\d*))\.0|(\d{4}-\d\d-\d\d)[ T]00:00:00(?:\.0+)?)")
"""A whole number and a day as programs write them where a column of floats or of times holds nothing else."""
FEWEST_CLASSES = 2
"""The smallest number of classes of a drawn split, and of those that are left for training.

A loss compares images of different classes, and where all images are of one class every neighbor is right.
"""
VALIDATION_CLASSES = 4
"""The smallest number of drawn validation classes, unless they are more than a third: two or three chose too badly."""


def match_splits(names: Iterable[str], *, may_be_classes: bool = False) -> dict[str, str]:
    """Return the split that each name means, by the only word of `SPLIT_WORDS` in it; other names are left out.

    Of names that may be those of classes, such as "train" and "test tube", only those count that are the same but for
    the word and divide images, into training and validation or test, or into two splits without training; or all
    names, if they are nothing but words of splits. Where there are queries but no gallery, "test" is the gallery, and
    the other way round.

    >>> match_splits(["Train2017", "image_query", "bounding_box_test", "valley", "train or test"])
    {'Train2017': 'train', 'image_query': 'query', 'bounding_box_test': 'gallery'}
    >>> match_splits(["train", "test tube"], may_be_classes=True), match_splits(["cars_train", "cars_test"])
    ({}, {'cars_train': 'train', 'cars_test': 'test'})
    """
    parsed = {name: _parse_name(name) for name in names}
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for name, (splits, other_words) in parsed.items():
        if len(splits) == 1:
            groups.setdefault(other_words if may_be_classes else (), {})[name] = next(iter(splits))
    meant: dict[str, str] = {}
    for other_words, group in groups.items():
        splits = {*group.values()}
        divides = len(splits - {"train"}) > 1 or ("train" in splits and not splits.isdisjoint(("val", "test", "eval")))
        if not may_be_classes or divides or (not other_words and len(group) == len(parsed)):
            meant |= group
    present = {*meant.values()}
    renamed = {"eval": "val" if "test" in present else "test"}
    if len(present & {"query", "gallery"}) == 1:
        renamed["test"] = "gallery" if "query" in present else "query"
    return {name: renamed.get(split, split) for name, split in meant.items()}


def _parse_name(name: str) -> tuple[set[str], tuple[str, ...]]:
    """Return the splits whose words are in a name, and its other words, without plain ones and single letters."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    words = [word for word in re.findall(r"[^\W\d_]{2,}", spaced) if not _PLAIN_WORD.fullmatch(word)]
    if (match := _SPLIT_WORD.fullmatch("".join(words))) and "/" not in name:  # such as hold-out and PublicTest
        return {str(match.lastgroup)}, ()
    splits = {str(match.lastgroup) for word in words if (match := _SPLIT_WORD.fullmatch(word))}
    if splits >= {"query", "gallery"}:  # what is both is its own gallery
        splits = {"test"}
    elif splits & {"query", "gallery"}:
        splits -= {"val", "test", "eval"}
    return splits, tuple(word for word in words if not _SPLIT_WORD.fullmatch(word))


def divide_by_folders(folders: Sequence[tuple[str, ...]], source: str) -> tuple[int, list[str]]:
    """Return the depth at which the folders of each image are named like splits, and its split; [] if there is none."""
    distinct = sorted({*folders})
    splits_at_depths: list[tuple[int, dict[str, str]]] = []
    for depth in range(max(map(len, distinct), default=0)):
        names = {folder[depth] for folder in distinct if len(folder) > depth}
        if splits := match_splits(names, may_be_classes=True):
            splits_at_depths.append((depth, splits))
    if not splits_at_depths:
        return 0, []
    # a folder above all others may be called "test" by chance
    depth, splits = max(splits_at_depths, key=lambda pair: min(len({*pair[1].values()}), 2))
    for folder in distinct:
        if len(folder) <= depth or folder[depth] not in splits:
            raise InputError(
                f"{source}: {printable('/'.join(folder[: depth + 1]))}/ stands beside "
                f"{' and '.join(f'{printable(name)}/' for name in sorted(splits))}; beside a split there may only be "
                f"splits, {', '.join(SPLITS)}; move it elsewhere, or list the images with their splits (dataset=csv)"
            )
    return depth, [splits[folder[depth]] for folder in folders]


def read_split_columns(columns: Mapping[str, Sequence[str]], chosen: str = "") -> tuple[str, list[str], list[str]]:
    """Read the split of each row from the columns that name it -> their names, what they say, and the split or "".

    They are a column of words, which is a `SPLIT_COLUMN`, or holds words of splits alone; or all that have a word of a
    split in their name and hold `TRUE` and `FALSE`. Beside words, these say only what is query or gallery. Rows in
    which none is true are the training, unless one says what that is. A ``chosen`` column is the only one that counts.

    >>> read_split_columns({"is_valid": ["0", "1"], "weight": ["3", "5"]})
    ('is_valid', ['train', 'is_valid'], ['train', 'val'])
    >>> read_split_columns({"split": ["dev", "dev", "x"], "is_query": ["True", "", ""]})
    ('split and is_query', ['dev is_query', 'dev', 'x'], ['query', 'val', ''])
    """
    flags: dict[str, str] = {}
    words: list[str] = []
    for name, values in columns.items():
        present = {value.lower() for value in values} - {"", "none", "nan"}
        meant, flag, kind = match_splits(present), match_splits([name]), SPLIT_COLUMN.fullmatch(name)
        splits = {*meant.values()}
        if flag and present and present <= TRUE | FALSE:
            flags |= flag
        elif (kind and (kind["surely"] or splits - {"train"})) or (len(splits) > 1 and meant.keys() == present):
            words.append(name)
    names = [chosen] if chosen else ["split"] if "split" in columns else words[:1]
    if not chosen:
        names += [name for name, split in flags.items() if not names or split in ("query", "gallery")]
    said = {flags.get(name, "") for name in names}
    other_side = "test" if "train" in said else "gallery" if said == {"query"} else "train"
    cells = [
        [(name if value.lower() in TRUE else "") if name in flags else value for value in columns[name]]
        for name in names
    ]
    rows = [" ".join(filter(None, row)) or ("" if "" in said else other_side) for row in zip(*cells, strict=True)]
    meanings = match_splits({*rows})
    return " and ".join(names), rows, [meanings.get(row, "") for row in rows]


def name_classes(values: Iterable[Any]) -> list[str]:
    """Return the names of the classes in a column of texts or other values; "" where there is none.

    A name is the text of the value in a .csv file, without blanks around it, and composed (NFC). It stays as it is:
    "007" isn't 7. Only where all values are whole floats, as integers become beside a NaN, ".0" is left out, and where
    all are times at midnight, the time.

    >>> name_classes([6.0, None]), name_classes([" 6.0", "6.5"]), name_classes(["007", 7])
    (['6', ''], ['6.0', '6.5'], ['007', '7'])
    """
    names = [compose_name(to_text(value).strip()) for value in values]
    matches = {name: _LENGTHENED.fullmatch(name) for name in {*names} - {""}}
    if not all(matches.values()):
        return names
    return [match[1] or match[2] if (match := matches.get(name)) else "" for name in names]


def number_classes(names: Iterable[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Number classes in the order of their sorted names, the same on every machine -> labels (N,), class names.

    A name is composed (NFC), since file systems differ in how they write an accent.

    >>> labels, classes = number_classes(["cat", "ant", "cat"])
    >>> labels.tolist(), classes
    ([1, 0, 1], ('ant', 'cat'))
    """
    classes, labels = np.unique(np.array([*map(compose_name, names)], dtype=np.str_), return_inverse=True)
    return labels.astype(np.int64), tuple(classes.tolist())


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
        fewest, to_keep = _find_smallest_sizes(len(np.unique(table.labels[:, 0])), draws_val=draws_val)
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
    return replace(table, split=split, val_fraction=val_fraction if draws_val else 0.0)


def warn_of_names(labels: NDArray[np.int64], names: Sequence[Sequence[str]], source: str) -> None:
    """Warn of finest classes with one of `MISSING_NAMES`, and of classes of a level in several spellings."""
    parts = [{name.lower(), name.lower().rpartition("/")[2]} for name in names[0]]
    if missing := [label for label, name in enumerate(parts) if name & MISSING_NAMES]:
        count = format_count(int(np.isin(labels[:, 0], missing).sum()), "image")
        examples = printable(", ".join(names[0][label] for label in missing[:9]))
        logger.warning("%s: the class of %s is %s, as if it were missing", printable(source), count, examples)
    spellings: dict[tuple[int, str | Decimal], list[str]] = {}
    for level, classes in enumerate(names):
        for name in classes:
            if name.lower() not in MISSING_NAMES:
                spellings.setdefault((level, _find_spelling_key(name)), []).append(name)
    if repeated := [*dict.fromkeys(" and ".join(map(repr, same)) for same in spellings.values() if len(same) > 1)]:
        number = format_count(len(repeated), "class seems", "classes seem")
        examples = printable(", ".join(repeated[:9]))
        line = "%s: %s to be there in several spellings, each of which counts as a class: %s; write them in one way"
        logger.warning(line, printable(source), number, examples)


def _find_spelling_key(name: str) -> str | Decimal:
    """Return what spellings of a class share: letters without case and form, nothing invisible, a number's value."""
    letters = unicodedata.normalize("NFKC", name).casefold()
    seen = (letter for letter in letters if letter.isspace() or unicodedata.category(letter) not in ("Cc", "Cf"))
    text = " ".join("".join(seen).split())
    return Decimal(text) if re.fullmatch(r"[+-]?\d+(\.\d*)?", text) else text


def _find_smallest_sizes(classes: int, *, draws_val: bool) -> tuple[int, int]:
    """Return how many classes a drawn test has at least, and how many it leaves at least."""
    if draws_val:
        return FEWEST_CLASSES, 2 * FEWEST_CLASSES
    return min(max(classes // 2, 1), FEWEST_CLASSES), min(max(classes - 1, 1), FEWEST_CLASSES)


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
    """Return a number from 0 to 1 that depends on the seed, the option and the class name alone."""
    key = f"{seed}\0{option}\0{name}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


def _describe_lack(source: str, count: int, option: str, fewest: int, to_keep: int) -> str:
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
    rule = f"; classes were drawn for val by their names, each with probability {table.val_fraction:g}"
    return ", ".join(parts) + (rule if table.val_fraction and "val" in numbers else "")
