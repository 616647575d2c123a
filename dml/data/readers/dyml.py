"""The reader of the three data sets of Dynamic Metric Learning."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dml.data.layout import Layout, parse_whole_number, read_list_lines
from dml.data.table import EVERY_LEVEL, UNKNOWN, ImageTable
from dml.runtime.errors import InputError

LEVELS = ("fine", "middle", "coarse")
PAGE = "https://github.com/SupetZYK/DynamicMetricLearning"
BENCHMARKS = (
    "train/label.csv, train/imgs/, and bmk_fine/, bmk_middle/ and bmk_coarse/ with query.csv, query/, gallery.csv "
    "and gallery/"
)
LAYOUTS = {
    "vehicle": Layout("DyML-Vehicle", BENCHMARKS, PAGE),
    "animal": Layout("DyML-Animal", BENCHMARKS, PAGE),
    "product": Layout("DyML-Product", "train/ and mini-bmk_all_in_one/ with label.csv and imgs/ each", PAGE),
}
HEADER = re.compile(r"\s*fname((?:\s*,\s*(?:fine_id|middle_id|coarse_id|labels?))+)")

Ids = NDArray[np.int64]


class ImageList(NamedTuple):
    """The images of one csv file, with their class ids (N, 3), `UNKNOWN` at levels that the file doesn't list."""

    paths: list[str]
    ids: Ids
    split: str
    level: int


def read(root: str | Path | None, *, variant: str) -> ImageTable:
    """Read a data set of Dynamic Metric Learning (Sun et al., CVPR 2021): vehicles, animals or products, three levels.

    Vehicles and animals are tested on three lists of queries and galleries; each list has the ids of one level and is
    evaluated at this level. Products are tested on one list against itself at each level, so the table has each of its
    rows three times. Ids become labels without gaps. The labels of the test classes follow those of the training
    classes, because the ids of the two aren't related.

    The root holds ``train/``. The images of ``query.csv`` may be in ``query/``, where the authors' loader expects them,
    in ``query/imgs/`` or in ``imgs/``; those of ``label.csv`` are in ``imgs/``. In the published csv files the first
    record follows the header in the same line; well-formed files can be read too.
    """
    if variant not in LAYOUTS:
        raise InputError(f"dataset.reader.variant={variant}: {', '.join(LAYOUTS)}")
    layout = LAYOUTS[variant]
    folder = layout.root(root)
    training = _read_image_list(layout, folder, "train/label", "train", EVERY_LEVEL)
    if variant == "product":
        test_file = "mini-bmk_all_in_one/label"
        tests = [_read_image_list(layout, folder, test_file, "test", level) for level in range(len(LEVELS))]
    else:
        tests = [
            _read_image_list(layout, folder, f"bmk_{name}/{split}", split, level)
            for level, name in enumerate(LEVELS)
            for split in ("query", "gallery")
        ]
    lists = [training, *tests]
    return ImageTable(
        paths=np.array([path for image_list in lists for path in image_list.paths], dtype=np.str_),
        labels=_number_ids(training.ids, np.concatenate([test.ids for test in tests])),
        split=np.array([image_list.split for image_list in lists for _ in image_list.paths], dtype=np.str_),
        levels=LEVELS,
        benchmark=np.array([image_list.level for image_list in lists for _ in image_list.paths], dtype=np.int64),
        source=f"the csv files of {folder}",
    )


def _number_ids(training: Ids, test: Ids) -> Ids:
    """Convert the ids of training (N, 3) and test (M, 3) to labels (N + M, 3) without gaps."""
    labels = np.full((len(training) + len(test), len(LEVELS)), UNKNOWN)
    for level in range(len(LEVELS)):
        classes, labels[: len(training), level] = np.unique(training[:, level], return_inverse=True)
        is_known = test[:, level] != UNKNOWN
        _, test_labels = np.unique(test[is_known, level], return_inverse=True)
        labels[len(training) :, level][is_known] = len(classes) + test_labels
    return labels


def _read_image_list(layout: Layout, folder: Path, name: str, split: str, level: int) -> ImageList:
    """Read one csv file."""
    path = layout.find(folder, f"{name}.csv")
    parent, _, stem = name.rpartition("/")
    list_folders = [] if stem == "label" else [f"{parent}/{stem}/imgs", f"{parent}/{stem}"]
    image_folder = layout.find(folder, *list_folders, f"{parent}/imgs")
    levels = range(len(LEVELS)) if level == EVERY_LEVEL else (level,)
    paths: list[str] = []
    ids: list[list[int]] = []
    for line, record in _read_records(path):
        paths.append(f"{image_folder}/{record['fname']}")
        ids.append([_parse_id(record, LEVELS[i], path, line) if i in levels else UNKNOWN for i in range(len(LEVELS))])
    return ImageList(paths, np.array(ids, dtype=np.int64).reshape(-1, len(LEVELS)), split, level)


def _read_records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    header, *lines = read_list_lines(path)
    match = HEADER.match(header)
    if not match:
        raise InputError(
            f"{path}, line 1: {header[:80]!r}, expected the header 'fname, coarse_id, middle_id, fine_id' "
            "or 'fname, labels'"
        )
    columns = ["fname", *(name.strip() for name in match[1].split(",")[1:])]
    for number, line in enumerate((header[match.end() :], *lines), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(columns):
            raise InputError(f"{path}, line {number}: {line.strip()!r}, expected {len(columns)} columns")
        yield number, dict(zip(columns, cells, strict=True))


def _parse_id(record: dict[str, str], level: str, path: Path, line: int) -> int:
    """Return the class id of a record at a level; a list with the ids of one level has them in ``labels``."""
    names = [name for name in (f"{level}_id", "labels", "label") if name in record]
    if not names:
        raise InputError(f"{path}, line {line}: no column {level}_id or labels among {', '.join(record)}")
    number = parse_whole_number(record[names[0]], path, f"line {line}, {names[0]}")
    if number < 0:
        raise InputError(f"{path}: line {line}, {names[0]} {number} is negative")
    return number
