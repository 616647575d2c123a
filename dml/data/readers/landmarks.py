"""The reader of Google Landmarks v2."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dml.data.judgments import Query, add_training, make_judged_table
from dml.data.layout import Layout, parse_whole_number, read_list_rows
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.text import printable

LAYOUT = Layout(
    name="Google Landmarks v2",
    tree=(
        "train_clean.csv, or train.csv for dataset.reader.clean=false, index.csv, retrieval_solution_v2.1.csv, and "
        "train/, index/ and test/"
    ),
    page="https://github.com/cvdfoundation/google-landmark",
)
USAGES = ("Public", "Private")  # the parts of the test; rows of another one are ignored


def read(root: str | Path | None, *, clean: bool = True, usage: str | None = None) -> ImageTable:
    """Read the training images of Google Landmarks v2 (Weyand et al., CVPR 2020), and the test of retrieval.

    The landmarks of training and those of the index aren't related. Queries with the same positives are a class.

    Args:
        root: the folder that holds the lists, and ``train/``, ``index/`` and ``test/`` with images such as
            ``0/0/0/000a0aee5e90cbaf.jpg``.
        clean: whether to read ``train_clean.csv``, the cleaned part of the training images, or all in ``train.csv``.
        usage: "Public" or "Private", the part of the test whose queries are read; None reads both.

    Raises:
        InputError: if a list is missing or can't be parsed, or names an image that isn't in the index.
    """
    if usage not in (None, *USAGES):
        raise InputError(f"dataset.reader.usage={printable(usage)}: {' or '.join(USAGES)}")
    folder = LAYOUT.root(root)
    names = ("train_clean.csv" if clean else "train.csv", "index.csv", "retrieval_solution_v2.1.csv")
    lists = [LAYOUT.find(folder, name) for name in names]
    images = [cells for _, cells in read_list_rows(lists[1], 1, skip=1, header="id")]
    numbers = {image: number for number, (image,) in enumerate(images)}
    queries = []
    for place, (image, listed, part) in read_list_rows(lists[2], 3, skip=1, header="id,images,Usage", separator=","):
        if listed.strip() == "None" or part not in ((usage,) if usage else USAGES):
            continue
        if unknown := [name for name in listed.split() if name not in numbers]:
            raise InputError(f"{place}: image {printable(unknown[0])} isn't in {lists[1].name}")
        positives = np.unique([numbers[name] for name in listed.split()]).astype(np.int64)
        queries.append(Query(_find_image(folder, "test", image), 0, positives, positives[:0]))
    if not queries:
        raise InputError(f"{lists[2]}: no query in it whose Usage is {usage or ' or '.join(USAGES)}")
    gallery = [_find_image(folder, "index", image) for (image,) in images]
    test = make_judged_table(queries, gallery, levels=("landmark",), source=" and ".join(map(str, lists)))
    listed_training = (_list_clean if clean else _list_all)(lists[0])
    training = [(_find_image(folder, "train", image), landmark, "train") for image, landmark in listed_training]
    return add_training(test, training)


def _list_clean(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the ids of each image and of its landmark; a line of ``train_clean.csv`` has all images of a landmark."""
    for _, (landmark, images) in read_list_rows(path, 2, skip=1, header="landmark_id,images", separator=","):
        yield from ((image, landmark) for image in images.split())


def _list_all(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the ids of each image and of its landmark; a line of ``train.csv`` has one, and commas in its address."""
    for place, (image, _, rest) in read_list_rows(path, 3, skip=1, header="id,url,landmark_id", separator=","):
        yield image, str(parse_whole_number(rest.rpartition(",")[2], place, "landmark_id"))


def _find_image(folder: Path, split: str, image: str) -> str:
    if len(image) < 3:
        raise InputError(f"{folder}: id {printable(repr(image))} in {split}, expected one such as 000a0aee5e90cbaf")
    return f"{folder}/{split}/{image[0]}/{image[1]}/{image[2]}/{image}.jpg"
