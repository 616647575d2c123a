"""The reader of Revisited Oxford and Paris: ROxford5k and RParis6k."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.data.image_files.limits import read_list_bytes
from dml.data.judgments import make_judged_table
from dml.data.layout import Layout
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.reading import parse_pickle
from dml.runtime.text import printable

LAYOUT = Layout(
    name="ROxford5k or RParis6k",
    tree="gnd_roxford5k.pkl or gnd_rparis6k.pkl, and the folder jpg/",
    page="https://github.com/filipradenovic/revisitop",
)
LISTS = ("easy", "hard", "junk")
SETUPS = {
    "easy": (("easy",), ("junk", "hard")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("junk", "easy")),
}
"""The lists of a query's positives and of what it ignores, in each of the three setups."""


def read(root: str | Path | None) -> ImageTable:
    """Read ROxford5k or RParis6k (Radenovic et al., CVPR 2018): 70 queries for landmarks, whose positives are listed.

    The levels are the three setups, each with a benchmark list: level 0 is Easy, 1 Medium and 2 Hard. Ignored images
    are excluded from the ranking of their query. The official metric is ``trapezoid_ap``. The officially cropped
    queries aren't cropped.

    Args:
        root: the folder that holds ``gnd_roxford5k.pkl`` or ``gnd_rparis6k.pkl``, and the images in ``jpg/``.

    Raises:
        InputError: if the list or the folder is missing, or the list can't be parsed or would run code.
    """
    folder = LAYOUT.root(root)
    path = LAYOUT.find(folder, "gnd_roxford5k.pkl", "gnd_rparis6k.pkl")
    images = LAYOUT.find(folder, "jpg")
    try:
        truth = parse_pickle(read_list_bytes(path))
    except ValueError as error:
        raise InputError(f"{path}: {printable(error)}") from error
    gallery, queries = (_read_names(truth, key, path) for key in ("imlist", "qimlist"))
    entries = _select(truth, "gnd", path)
    if len(entries) != len(queries):
        raise InputError(f"{path}: {len(queries)} queries in qimlist, {len(entries)} in gnd")
    lists = [
        {name: _parse_indices(entry, name, len(gallery), f"{path}: gnd of {printable(query)}") for name in LISTS}
        for query, entry in zip(queries, entries, strict=True)
    ]
    positives, ignored = (
        [[np.concatenate([parts[name] for name in setup[i]]) for setup in SETUPS.values()] for parts in lists]
        for i in range(2)
    )
    return make_judged_table(
        [f"{images}/{name}.jpg" for name in queries],
        [f"{images}/{name}.jpg" for name in gallery],
        positives,
        ignored,
        levels=tuple(SETUPS),
        source=str(path),
    )


def _select(truth: Any, key: str, place: str | Path) -> list[Any]:
    if not isinstance(truth, dict) or not isinstance(truth.get(key), list):
        raise InputError(f"{place}: no list {key} in it")
    values: list[Any] = truth[key]
    return values


def _read_names(truth: Any, key: str, path: Path) -> list[str]:
    names = _select(truth, key, path)
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: {key} isn't a list of names")
    return names


def _parse_indices(entry: Any, name: str, size: int, place: str) -> NDArray[np.int64]:
    indices = _select(entry, name, place)
    for index in indices:
        if not isinstance(index, int) or not 0 <= index < size:
            raise InputError(f"{place}: {name} has {index!r:.40}, expected whole numbers from 0 to {size - 1}")
    return np.unique(np.array(indices, dtype=np.int64))
