"""The splits, and the names of folders, columns and cells that mean them."""

import re
from collections.abc import Iterable, Mapping, Sequence

from dml.runtime.errors import InputError
from dml.runtime.text import printable

SPLITS = ("train", "val", "test", "query", "gallery")
SPLIT_WORDS = {
    "train": "train training trainval trn learning",
    "val": "val valid validation validate dev devel development",
    "test": "test testing tst holdout heldout privatetest",
    "query": "query queries probe probes",
    "gallery": "gallery galleries enrol enroll enrolled enrolment enrollment reference references database",
    "eval": "eval evaluation publictest",
}
"""The words that stand for each split; "eval" is the test, or the validation where another word is the test."""
_ANY_SPLIT = "|".join(map("(?P<{}>{})".format, SPLIT_WORDS, SPLIT_WORDS.values())).replace(" ", "|")
_SPLIT_WORD = re.compile(f"(?:is)?(?:{_ANY_SPLIT})(?:s|sets?|images?|imgs?|data)?")
_PLAIN_WORD = re.compile(
    "bbox|bounding|box(es)?|crop(s|ped)?|data(sets?)?|files?|for|images?|imgs?|in|is|list|names?|of|photos?|"
    "pictures?|sets?|splits?|the"
)
"""Words that change nothing beside that of a split."""
_SPLIT_COLUMN = re.compile(
    r"(?P<surely>(.*[ _-])?(splits?|partition))|subset|(data)?set|phase|mode|usage|stage|evaluation[ _-]?status",
    re.IGNORECASE,
)
"""Names of columns that hold words of splits, surely or perhaps."""
_TRUE, _FALSE = {"true", "t", "yes", "y", "1", "1.0"}, {"false", "f", "no", "n", "0", "0.0"}
"""What stands in a column such as ``is_valid``, in lower case."""


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
    depth, splits = 0, dict[str, str]()
    for deeper in range(max(map(len, distinct), default=0)):
        names = match_splits({folder[deeper] for folder in distinct if len(folder) > deeper}, may_be_classes=True)
        if names and (not splits or len({*splits.values()}) == 1 < len({*names.values()})):
            depth, splits = deeper, names  # a folder above all others may be called "test" by chance
    for folder in distinct if splits else ():
        if len(folder) <= depth or folder[depth] not in splits:
            raise InputError(
                f"{source}: {printable('/'.join(folder[: depth + 1]))}/ stands beside "
                f"{' and '.join(f'{printable(name)}/' for name in sorted(splits))}; beside a split there may only be "
                f"splits, {', '.join(SPLITS)}; move it elsewhere, or list the images with their splits (dataset=csv)"
            )
    return depth, [splits[folder[depth]] for folder in folders] if splits else []


def read_split_columns(columns: Mapping[str, Sequence[str]], chosen: str = "") -> tuple[str, list[str], list[str]]:
    """Read the split of each row from the columns that name it -> their names, what they say, and the split or "".

    They are a column of words, which is a `_SPLIT_COLUMN`, or holds words of splits alone; or all that have a word of a
    split in their name and hold `_TRUE` and `_FALSE`. Beside words, these say only what is query or gallery. Rows in
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
        meant, flag, kind = match_splits(present), match_splits([name]), _SPLIT_COLUMN.fullmatch(name)
        splits = {*meant.values()}
        if flag and present and present <= _TRUE | _FALSE:
            flags |= flag
        elif (kind and (kind["surely"] or splits - {"train"})) or (len(splits) > 1 and meant.keys() == present):
            words.append(name)
    names = [chosen] if chosen else ["split"] if "split" in columns else words[:1]
    if not chosen:
        names += [name for name, split in flags.items() if not names or split in ("query", "gallery")]
    said = {flags.get(name, "") for name in names}
    other_side = "test" if "train" in said else "gallery" if said == {"query"} else "train"
    cells = [
        [(name if value.lower() in _TRUE else "") if name in flags else value for value in columns[name]]
        for name in names
    ]
    rows = [" ".join(filter(None, row)) or ("" if "" in said else other_side) for row in zip(*cells, strict=True)]
    meanings = match_splits({*rows})
    return " and ".join(names), rows, [meanings.get(row, "") for row in rows]
