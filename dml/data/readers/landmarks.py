"""The reader of Google Landmarks v2."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dml.data.judgments import add_training, make_judged_table
from dml.data.layout import Layout, read_csv_rows
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.text import printable

LAYOUT = Layout(
    name="Google Landmarks v2",
    tree="train_clean.csv or train.csv, index.csv, retrieval_solution_v2.1.csv, and train/, index/ and test/",
    page="https://github.com/cvdfoundation/google-landmark",
)
COLUMNS = {"clean": ("landmark_id", "images"), "full": ("landmark_id", "id")}
LISTS = {"clean": "train_clean.csv", "full": "train.csv"}
USAGES = ("Public", "Private")
"""The parts of the test; rows of another one are ignored."""


def read(root: str | Path | None, *, variant: str = "clean", usage: str | None = None) -> ImageTable:
    """Read Google Landmarks v2 (Weyand et al., CVPR 2020) for retrieval: landmarks in training, and listed positives.

    The landmarks of training and those of the index aren't related. Queries with the same positives are a class.

    Args:
        root: the folder that holds the lists, and ``train/``, ``index/`` and ``test/`` with images such as
            ``0/0/0/000a0aee5e90cbaf.jpg``.
        variant: "clean", the training images of ``train_clean.csv``, or "full", those of ``train.csv``.
        usage: "Public" or "Private", the part of the test whose queries are read; None reads both.

    Raises:
        InputError: if a list is missing or can't be parsed, or names an image that isn't in the index.
    """
    for option, value, choices in (("variant", variant, COLUMNS), ("usage", usage or USAGES[0], USAGES)):
        if value not in choices:
            raise InputError(f"dataset.reader.{option}={printable(value)}: {' or '.join(choices)}")
    folder = LAYOUT.root(root)
    lists = [LAYOUT.find(folder, name) for name in (LISTS[variant], "index.csv", "retrieval_solution_v2.1.csv")]
    training = [
        (place, landmark, image)
        for place, (landmark, images) in _read_columns(lists[0], *COLUMNS[variant])
        for image in images.split()
    ]
    gallery = [(place, image) for place, (image,) in _read_columns(lists[1], "id")]
    numbers = {image: number for number, (_, image) in enumerate(gallery)}
    queries, positives = [], []
    for place, (image, images, part) in _read_columns(lists[2], "id", "images", "Usage"):
        if images.strip() == "None" or part not in ((usage,) if usage else USAGES):
            continue
        if unknown := [name for name in images.split() if name not in numbers]:
            raise InputError(f"{place}: image {printable(unknown[0])} isn't in {lists[1].name}")
        queries.append((place, image))
        positives.append([np.unique([numbers[name] for name in images.split()]).astype(np.int64)])
    if not queries:
        raise InputError(f"{lists[2]}: no query in it whose Usage is {usage or ' or '.join(USAGES)}")
    test = make_judged_table(
        [_find_image(folder, "test", place, image) for place, image in queries],
        [_find_image(folder, "index", place, image) for place, image in gallery],
        positives,
        [[np.empty(0, dtype=np.int64)]] * len(queries),
        levels=("landmark",),
        source=" and ".join(map(str, lists)),
    )
    paths = [_find_image(folder, "train", place, image) for place, _, image in training]
    return add_training(test, paths, [landmark for _, landmark, _ in training])


def _read_columns(path: Path, *columns: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the file and line, and the cells of some columns, of each row of a .csv file."""
    rows = read_csv_rows(path)
    _, header = next(rows)
    if missing := [column for column in columns if column not in header]:
        raise InputError(f"{path}, line 1: no column {missing[0]}, but {printable(', '.join(header))}")
    places = [header.index(column) for column in columns]
    for number, row in rows:
        if len(row) != len(header):
            raise InputError(f"{path}, line {number}: {len(row)} columns, expected {len(header)}")
        yield f"{path}, line {number}", [row[place] for place in places]


def _find_image(folder: Path, split: str, place: str, image: str) -> str:
    if len(image) < 3 or "/" in image:
        raise InputError(f"{place}: id {printable(repr(image))}, expected one such as 000a0aee5e90cbaf")
    return f"{folder}/{split}/{image[0]}/{image[1]}/{image[2]}/{image}.jpg"
