import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.layout import Layout, lines_of, whole_number
from dml.data.table import EVERY_LEVEL, UNKNOWN, ImageTable
from dml.ops.errors import InputError

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
Listed = tuple[list[str], Ids, str, int]
"""The images' paths (N,) and ids (N, 3), their split, and the level that they are judged at."""


def read(root: str | Path | None, *, variant: str) -> ImageTable:
    """Dynamic Metric Learning (Sun et al., CVPR 2021): vehicles, animals or products at three levels.

    Vehicles and animals are tested on three lists of queries and their galleries, each judged at the one level whose
    ids it has; products on one list against itself, judged at each level: its rows are there three times. Ids become
    labels without gaps; those of the test are a space of their own, after the training's.

    The images of ``query.csv`` stand in ``query/``, as the authors' loader has it, ``query/imgs/`` or ``imgs/``;
    those of ``label.csv`` in ``imgs/``. In the published csv files the first record follows the header in the same
    line; well-formed ones are read too.

    Args:
        root: the folder with ``train/``.
        variant: "vehicle", "animal" or "product".

    Raises:
        InputError: if a list or a folder is missing or a line can't be parsed.
    """
    if variant not in LAYOUTS:
        raise InputError(f"dataset.reader.variant={variant}: {', '.join(LAYOUTS)}")
    layout = LAYOUTS[variant]
    folder = layout.root(root)
    training = _listed(layout, folder, "train/label", "train", EVERY_LEVEL)
    if variant == "product":
        whole = "mini-bmk_all_in_one/label"
        tests = [_listed(layout, folder, whole, "test", level) for level in range(len(LEVELS))]
    else:
        tests = [
            _listed(layout, folder, f"bmk_{name}/{split}", split, level)
            for level, name in enumerate(LEVELS)
            for split in ("query", "gallery")
        ]
    lists = [training, *tests]
    return ImageTable(
        paths=np.array([path for paths, *_ in lists for path in paths], dtype=np.str_),
        labels=_labels(training[1], np.concatenate([ids for _, ids, _, _ in tests])),
        split=np.array([split for paths, _, split, _ in lists for _ in paths], dtype=np.str_),
        levels=LEVELS,
        benchmark=np.array([level for paths, _, _, level in lists for _ in paths], dtype=np.int64),
        source=f"the csv files of {folder}",
    )


def _labels(training: Ids, test: Ids) -> Ids:
    """Ids (N, 3), (M, 3) -> labels (N + M, 3)."""
    labels = np.full((len(training) + len(test), len(LEVELS)), UNKNOWN)
    for level in range(len(LEVELS)):
        classes, labels[: len(training), level] = np.unique(training[:, level], return_inverse=True)
        known = test[:, level] != UNKNOWN
        _, unseen = np.unique(test[known, level], return_inverse=True)
        labels[len(training) :, level][known] = len(classes) + unseen
    return labels


def _listed(layout: Layout, folder: Path, name: str, split: str, level: int) -> Listed:
    """A list and its images; of a benchmark's ids those of its level alone."""
    path = layout.find(folder, f"{name}.csv")
    place, _, stem = name.rpartition("/")
    own = [] if stem == "label" else [f"{place}/{stem}/imgs", f"{place}/{stem}"]
    images = layout.find(folder, *own, f"{place}/imgs")
    levels = range(len(LEVELS)) if level == EVERY_LEVEL else (level,)
    paths: list[str] = []
    ids: list[list[int]] = []
    for line, record in _records(path):
        paths.append(f"{images}/{record['fname']}")
        ids.append([_id(record, LEVELS[i], path, line) if i in levels else UNKNOWN for i in range(len(LEVELS))])
    return paths, np.array(ids, dtype=np.int64).reshape(-1, len(LEVELS)), split, level


def _records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The records by column, with their lines; the first one stands in the header's line or below it."""
    header, *lines = lines_of(path)
    found = HEADER.match(header)
    if not found:
        raise InputError(
            f"{path}, line 1: {header[:80]!r}, expected the header 'fname, coarse_id, middle_id, fine_id' "
            "or 'fname, labels'"
        )
    columns = ["fname", *(name.strip() for name in found[1].split(",")[1:])]
    for number, line in enumerate((header[found.end() :], *lines), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(columns):
            raise InputError(f"{path}, line {number}: {line.strip()!r}, expected {len(columns)} columns")
        yield number, dict(zip(columns, cells, strict=True))


def _id(record: dict[str, str], level: str, path: Path, line: int) -> int:
    """The id at a level; a benchmark's list calls its only one ``labels``."""
    names = [name for name in (f"{level}_id", "labels", "label") if name in record]
    if not names:
        raise InputError(f"{path}, line {line}: no column {level}_id or labels among {', '.join(record)}")
    number = whole_number(record[names[0]], path, f"line {line}, {names[0]}")
    if number < 0:
        raise InputError(f"{path}: line {line}, {names[0]} {number} is negative")
    return number
