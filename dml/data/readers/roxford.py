"""The reader of Revisited Oxford and Paris: ROxford5k and RParis6k."""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.data.contents import name_part, parse_edges, read_list_bytes
from dml.data.judgments import Query, make_judged_table
from dml.data.layout import Layout
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.text import printable

LAYOUT = Layout(
    name="ROxford5k or RParis6k",
    tree="gnd_roxford5k.pkl or gnd_rparis6k.pkl, and the folder jpg/",
    page="https://github.com/filipradenovic/revisitop",
)
SETUPS = {  # the lists of a query's positives, and of what it ignores
    "easy": (("easy",), ("junk", "hard")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("junk", "easy")),
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it would run {module}.{name}")


def _parse_pickle(content: bytes) -> Any:
    """Parse a pickle of plain values; a `ValueError` tells that it is damaged, or would run anything."""
    try:
        for opcode, argument, _ in pickletools.genops(content):
            # unpickling takes memory for all places up to this one
            if opcode.name.endswith("PUT") and int(argument or 0) > len(content):
                raise pickle.UnpicklingError(f"a place {argument:,}")  # noqa: TRY301
        return _PlainUnpickler(io.BytesIO(content), encoding="latin-1").load()
    except MemoryError:
        raise
    except Exception as error:  # damaged pickles raise many kinds
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise ValueError(f"not a pickle of plain values ({reason})") from error


def read(root: str | Path | None) -> ImageTable:
    """Read ROxford5k or RParis6k (Radenovic et al., CVPR 2018): 70 queries for landmarks, whose positives are listed.

    The root holds ``gnd_roxford5k.pkl`` or ``gnd_rparis6k.pkl``, and the images in ``jpg/``. The levels are the setups,
    each with a benchmark list: 0 is Easy, 1 Medium and 2 Hard. Ignored images are excluded from the ranking of their
    query. Queries are cropped to their boxes, rounded to whole pixels as Pillow does, where the list has any. The
    official metric is ``trapezoid_ap``.
    """
    folder = LAYOUT.root(root)
    path = LAYOUT.find(folder, "gnd_roxford5k.pkl", "gnd_rparis6k.pkl")
    images = LAYOUT.find(folder, "jpg")
    content = read_list_bytes(path)
    try:
        truth = _parse_pickle(content)
    except ValueError as error:
        raise InputError(f"{path}: {printable(error)}") from error
    gallery, queries, entries = (_select(truth, key, path) for key in ("imlist", "qimlist", "gnd"))
    if not queries or len(entries) != len(queries):
        raise InputError(f"{path}: {len(queries)} queries in qimlist, {len(entries)} in gnd")
    tests = []
    for level, setup in enumerate(SETUPS.values()):
        for query, entry in zip(queries, entries, strict=True):
            place = f"{path}: gnd of {printable(query)}"
            positives, ignored = (_join_lists(entry, names, len(gallery), place) for names in setup)
            if len(both := np.intersect1d(positives, ignored)):
                raise InputError(f"{place}: {printable(gallery[both[0]])} is in two of the lists easy, hard and junk")
            box = parse_edges(_select(entry, "bbx", place) if "bbx" in entry else (), place, rounds=True)
            tests.append(Query(name_part(f"{images}/{query}.jpg", box), level, positives, ignored))
    paths = [f"{images}/{name}.jpg" for name in gallery]
    return make_judged_table(tests, paths, levels=tuple(SETUPS), source=str(path))


def _select(truth: Any, key: str, place: str | Path) -> list[Any]:
    if not isinstance(truth, dict) or not isinstance(truth.get(key), list):
        raise InputError(f"{place}: no list {key} in it")
    values: list[Any] = truth[key]
    return values


def _join_lists(entry: Any, names: tuple[str, ...], size: int, place: str) -> NDArray[np.int64]:
    """Return the numbers in some lists of a query, rising, each of which is that of an image."""
    indices: set[int] = set()
    for name in names:
        for index in _select(entry, name, place):
            if not isinstance(index, int) or not 0 <= index < size:
                raise InputError(f"{place}: {name} has {index!r:.40}, expected whole numbers from 0 to {size - 1}")
            indices.add(index)
    return np.array(sorted(indices), dtype=np.int64)
