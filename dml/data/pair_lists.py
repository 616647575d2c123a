"""Lists of pairs of images that are of one class or not: LFW's ``pairs.txt``, and CSV files."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dml.data.layout import iterate_rows, parse_whole_number, read_list_lines, read_list_rows
from dml.data.splits import FALSE, TRUE
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home


class PairList(NamedTuple):
    """Images, each once, as the split "test"; the rows (2, P) of both images of each pair, and what and where it is."""

    images: ImageTable
    rows: NDArray[np.int64]
    is_same: NDArray[np.bool_]
    folds: NDArray[np.int64]


def read_pairs(file: str | Path) -> PairList:
    """Read a list of pairs, whose paths are relative to its folder, or to the folder ``lfw`` in it if there is one.

    A .csv file has the columns ``path_1``, ``path_2`` and ``same``, of yes and no. Any other one is as LFW's: below
    "SETS N" or "N" it has 2 N lines for each set, "name number number" or "name number name number". The sets are the
    folds; without several sets, pair i is in the fold i mod 10.

    Raises:
        InputError: if there is no such file, a line can't be read, or all pairs are of one kind.
    """
    path = expand_home(file)
    if not path.is_file():
        raise InputError(f"evaluation.pairs={file}: no such file; give a .csv file, or one like LFW's pairs.txt")
    pairs = [*(_read_csv(path) if path.suffix.lower() == ".csv" else _read_lfw(path))]
    if len({same for *_, same, _ in pairs}) < 2:
        raise InputError(f"{path}: {len(pairs)} pairs, expected some of one class and some of two")
    first, second, same, folds = map(np.array, zip(*pairs, strict=True))
    names, rows = np.unique(np.stack([first, second]), return_inverse=True)
    folder = path.parent / "lfw" if (path.parent / "lfw").is_dir() else path.parent
    paths, labels = np.array([str(folder / name) for name in names.tolist()]), np.zeros((len(names), 1), dtype=np.int64)
    images = ImageTable(paths, labels, np.full(len(names), "test"), ("label",), source=str(path))
    return PairList(images, rows.reshape(2, -1), same, folds if folds.any() else np.arange(len(pairs)) % 10)


def _read_csv(path: Path) -> Iterator[tuple[str, str, bool, int]]:
    """Yield the paths of the images of each pair, whether they are of one class, and the fold."""
    columns = ("path_1", "path_2", "same")
    for place, cells in iterate_rows(path, columns, f"pairs have the columns {', '.join(columns)}"):
        first, second, same = (cells[name] for name in columns)
        if not first or not second or same.lower() not in TRUE | FALSE:
            raise InputError(f"{place}: {[first, second, same]}, expected two paths, and yes or no")
        yield first, second, same.lower() in TRUE, 0


def _read_lfw(path: Path) -> Iterator[tuple[str, str, bool, int]]:
    header, rows = read_list_lines(path)[0], [*read_list_rows(path, 3, skip=1)]
    sizes = [parse_whole_number(cell, f"{path}, line 1", "number of pairs", lowest=1) for cell in header.split()]
    if len(sizes) not in (1, 2) or len(rows) != 2 * math.prod(sizes):
        raise InputError(f"{path}: {len(rows)} pairs below the first line {header!r}, expected 2 x SETS x N")
    for row, (place, (name, first, rest)) in enumerate(rows):
        *other_name, second = rest.split()
        if len(other_name) > 1:
            raise InputError(f"{place}: {rest!r} at its end, expected a number, or a name and a number")
        fold, other = row // (2 * sizes[-1]), (other_name or [name])[0]
        yield f"{name}/{name}_{first:0>4}.jpg", f"{other}/{other}_{second:0>4}.jpg", not other_name, fold
