"""The reader of the three data sets of Dynamic Metric Learning."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.layout import Layout, parse_whole_number, read_list_lines
from dml.data.table import EVERY_LEVEL, UNKNOWN, ImageTable
from dml.runtime.errors import InputError, check_choice

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
    check_choice("dataset.reader.variant", variant, LAYOUTS)
    layout = LAYOUTS[variant]
    folder = layout.root(root)
    lists = [("train/label", "train", EVERY_LEVEL)]
    if variant == "product":
        lists += [("mini-bmk_all_in_one/label", "test", level) for level in range(len(LEVELS))]
    else:
        lists += [
            (f"bmk_{name}/{split}", split, level) for level, name in enumerate(LEVELS) for split in ("query", "gallery")
        ]
    rows = [(*row, split, level) for name, split, level in lists for row in _read_rows(layout, folder, name, level)]
    paths, ids, splits, levels = zip(*rows, strict=True) if rows else ((), (), (), ())
    split, numbers = np.array(splits, dtype=np.str_), np.array(ids, dtype=np.int64).reshape(-1, len(LEVELS))
    return ImageTable(
        paths=np.array(paths, dtype=np.str_),
        labels=_number_ids(numbers[split == "train"], numbers[split != "train"]),
        split=split,
        levels=LEVELS,
        benchmark=np.array(levels, dtype=np.int64),
        source=f"the csv files of {folder}",
    )


def _number_ids(training: NDArray[np.int64], test: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert the ids of training (N, 3) and test (M, 3) to labels (N + M, 3) without gaps."""
    ids = np.concatenate([training, test])
    labels, is_training = np.full_like(ids, UNKNOWN), np.arange(len(ids)) < len(training)
    for level in range(len(LEVELS)):
        count = 0
        for rows in (is_training, ~is_training & (ids[:, level] != UNKNOWN)):
            classes, numbers = np.unique(ids[rows, level], return_inverse=True)
            labels[rows, level] = count + numbers
            count += len(classes)
    return labels


def _read_rows(layout: Layout, folder: Path, name: str, level: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the path and the ids of each image of a csv file, `UNKNOWN` at levels that the file doesn't list."""
    path = layout.find(folder, f"{name}.csv")
    parent, _, stem = name.rpartition("/")
    list_folders = [] if stem == "label" else [f"{parent}/{stem}/imgs", f"{parent}/{stem}"]
    image_folder = layout.find(folder, *list_folders, f"{parent}/imgs")
    levels = range(len(LEVELS)) if level == EVERY_LEVEL else (level,)
    for line, record in _read_records(path):
        ids = [_parse_id(record, LEVELS[i], path, line) if i in levels else UNKNOWN for i in range(len(LEVELS))]
        yield f"{image_folder}/{record['fname']}", ids


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
    return parse_whole_number(record[names[0]], path, f"line {line}, {names[0]}", lowest=0)
