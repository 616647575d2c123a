"""The reader of Google Landmarks v2."""

from pathlib import Path

import numpy as np

from dml.data.judgments import Query, add_training, make_judged_table
from dml.data.layout import Layout, read_list_rows
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.text import printable

LAYOUT = Layout(
    name="Google Landmarks v2",
    tree="train_clean.csv, index.csv, retrieval_solution_v2.1.csv, and train/, index/ and test/",
    page="https://github.com/cvdfoundation/google-landmark",
)
USAGES = ("Public", "Private")  # the parts of the test; rows of another one are ignored


def read(root: str | Path | None, *, usage: str | None = None) -> ImageTable:
    """Read Google Landmarks v2 (Weyand et al., CVPR 2020) in its cleaned part, with the test of retrieval.

    The landmarks of training and those of the index aren't related. Queries with the same positives are a class.

    Args:
        root: the folder that holds the lists, and ``train/``, ``index/`` and ``test/`` with images such as
            ``0/0/0/000a0aee5e90cbaf.jpg``.
        usage: "Public" or "Private", the part of the test whose queries are read; None reads both.

    Raises:
        InputError: if a list is missing or can't be parsed, or names an image that isn't in the index.
    """
    if usage not in (None, *USAGES):
        raise InputError(f"dataset.reader.usage={printable(usage)}: {' or '.join(USAGES)}")
    folder = LAYOUT.root(root)
    lists = [LAYOUT.find(folder, name) for name in ("train_clean.csv", "index.csv", "retrieval_solution_v2.1.csv")]
    images = [cells for _, cells in read_list_rows(lists[1], 1, skip=1, header="id")]
    numbers = {image: number for number, (image,) in enumerate(images)}
    queries = []
    for place, (image, listed, part) in read_list_rows(lists[2], 3, skip=1, header="id,images,Usage", separator=","):
        if listed.strip() == "None" or part not in ((usage,) if usage else USAGES):
            continue
        if unknown := [name for name in listed.split() if name not in numbers]:
            raise InputError(f"{place}: image {printable(unknown[0])} isn't in {lists[1].name}")
        positives = np.unique([numbers[name] for name in listed.split()])
        queries.append(Query(_find_image(folder, "test", image), 0, positives, positives[:0]))
    if not queries:
        raise InputError(f"{lists[2]}: no query in it whose Usage is {usage or ' or '.join(USAGES)}")
    gallery = [_find_image(folder, "index", image) for (image,) in images]
    test = make_judged_table(queries, gallery, levels=("landmark",), source=" and ".join(map(str, lists)))
    training = [
        (_find_image(folder, "train", image), landmark, "train")
        for _, (landmark, listed) in read_list_rows(lists[0], 2, skip=1, header="landmark_id,images", separator=",")
        for image in listed.split()
    ]
    return add_training(test, training)


def _find_image(folder: Path, split: str, image: str) -> str:
    if len(image) < 3:
        raise InputError(f"{folder}: id {printable(repr(image))} in {split}, expected one such as 000a0aee5e90cbaf")
    return f"{folder}/{split}/{image[0]}/{image[1]}/{image[2]}/{image}.jpg"
