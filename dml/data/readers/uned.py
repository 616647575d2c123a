"""The reader of UnED, the Universal Embedding Dataset."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from dml.data.image_files.limits import read_list_bytes
from dml.data.judgments import Query, add_training, make_judged_table
from dml.data.layout import Layout
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.text import printable

LAYOUT = Layout(
    name="UnED",
    tree="info_files/ with cars/train.json and so on, and the folder images/ with those of its eight data sets",
    page="https://cmp.felk.cvut.cz/univ_emb/",
)
DOMAINS = ("cars", "sop", "inshop", "inat", "met", "gldv2", "food2k", "rp2k")
INDEXED = ("inshop", "met", "gldv2")  # they have a list of the gallery; the queries of the others are their own


def read(root: str | Path | None) -> ImageTable:
    """Read UnED (Ypsilantis et al., ICCV 2023): eight data sets in training, whose queries search one gallery of all.

    Level 0 is the class, of training and validation. The other levels are the data sets, each with a benchmark list: at
    its level, its classes are the classes, and all images of the others are wrong. So ``mean/recall@1`` and
    ``mean/mmp5`` are the official means over the data sets. Queries that are in the gallery too exclude themselves. A
    query of several classes has the images of all of them as positives.

    Args:
        root: the folder that holds ``info_files/`` and ``images/``.

    Raises:
        InputError: if a list is missing or can't be parsed.
    """
    folder = LAYOUT.root(root)
    training, queries, gallery = list[tuple[str, str, str]](), list[Query](), list[str]()
    for level, domain in enumerate(DOMAINS, 1):
        for split in ("train", "val"):
            for path, classes in _read_images(folder, domain, split):
                training.append((path, f"{domain} {split} {classes[0]}", split))
        numbers, rows = defaultdict[int, list[int]](list), dict[str, int]()
        for path, classes in _read_images(folder, domain, "index" if domain in INDEXED else "test"):
            rows[path] = len(gallery)
            for label in classes:
                numbers[label].append(len(gallery))
            gallery.append(path)
        for path, classes in _read_images(folder, domain, "test"):
            positives = np.unique([number for label in classes for number in numbers[label]]).astype(np.int64)
            itself = np.array([] if domain in INDEXED else [rows[path]], dtype=np.int64)
            queries.append(Query(path, level, positives, itself))
    test = make_judged_table(queries, gallery, levels=("class", *DOMAINS), source=f"{folder}/info_files")
    return add_training(test, training)


def _read_images(folder: Path, domain: str, split: str) -> list[tuple[str, list[int]]]:
    """Read the path and the classes of each image of a list, which names one or more."""
    images, path = LAYOUT.find(folder, "images"), LAYOUT.find(folder, f"info_files/{domain}/{split}.json")
    content = read_list_bytes(path)
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file ({printable(error)})") from error
    listed: list[tuple[str, list[int]]] = []
    for number, entry in enumerate(entries if isinstance(entries, list) and entries else [entries]):
        name, label = (entry.get("path"), entry.get("class_id")) if isinstance(entry, dict) else (None, None)
        classes: list[Any] = label if isinstance(label, list) else [label]
        if not isinstance(name, str) or not classes or not all(isinstance(label, int) for label in classes):
            raise InputError(f"{path}: entry {number} is {printable(entry)!r:.80}, expected a path and a class_id")
        listed.append((f"{images}/{name}", classes))
    return listed
