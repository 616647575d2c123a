"""The images in an index: their ids, paths and labels."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dml.data.image_files.contents import MISSING, read_stamps
from dml.data.layout import name_similar
from dml.data.names import check_paths
from dml.data.table import ImageTable
from dml.inference.image_inputs import list_named_images, unpack_paths
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.filesystem.paths import absolute_path, expand_home

Source = str | Path | Sequence[str | Path] | ImageTable
"""A folder of images, a list of them, paths, or a table."""

SOURCES = "a folder of images, a list of them (.csv, .txt or .parquet), paths, or an ImageTable"


@dataclass(frozen=True)
class IndexItems:
    """The images in an index, in ascending order of their ids.

    Args:
        ids: (N,) int64, ascending.
        paths: (N,) strings, each once.
        labels: (N,) strings, names of the classes; empty strings where none is known.
    """

    ids: NDArray[np.int64]
    paths: NDArray[np.object_]
    labels: NDArray[np.object_]

    @classmethod
    def number(cls, paths: Iterable[str], labels: Iterable[str], first_id: int = 0) -> "IndexItems":
        """Give ids to images, from ``first_id`` on.

        Raises:
            InputError: if a path is given twice.
        """
        listed = [*paths]
        path, count = max(Counter(listed).items(), key=lambda item: item[1], default=("", 0))
        if count > 1:
            raise InputError(f"{printable(path)}: given {count} times; an index holds it once")
        return cls(np.arange(first_id, first_id + len(listed)), _as_objects(listed), _as_objects(labels))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def next_id(self) -> int:
        """The smallest id that is larger than all ids; 0 without items."""
        return int(self.ids[-1]) + 1 if len(self) else 0

    @cached_property
    def same_share(self) -> float | None:
        """The share of pairs of one class among all pairs of images with a label; None if it is 0 or 1."""
        counts = np.array([count for label, count in Counter(self.labels.tolist()).items() if label])
        pairs, same = counts.sum() * (counts.sum() - 1), (counts * (counts - 1)).sum()
        return float(same / pairs) if 0 < same < pairs else None

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of ids, of any shape; -1 for negative ids, which stand for no item.

        Raises:
            InputError: if an id isn't there.
        """
        positions = np.where(ids < 0, -1, np.searchsorted(self.ids, ids))
        is_unknown = (ids >= 0) & (self.ids.take(positions, mode="clip") != ids)
        if is_unknown.any():
            raise InputError(f"vectors: one has the id {ids[is_unknown][0]}, which no image has; build the index again")
        return positions

    def holds(self, paths: Iterable[str]) -> NDArray[np.bool_]:
        """Return for each absolute path whether it is among those of the items."""
        known = set(self.absolute_paths())
        return np.array([path in known for path in paths], dtype=bool)

    def absolute_paths(self) -> list[str]:
        """Return the absolute paths; those that an older version of dml stored are relative to the working folder."""
        return [*map(absolute_path, self.paths.tolist())]

    def take(self, keep: NDArray[np.bool_]) -> "IndexItems":
        """Return the items at which a mask (N,) is true."""
        return IndexItems(self.ids[keep], self.paths[keep], self.labels[keep])

    def take_labels(self, earlier: "IndexItems") -> "IndexItems":
        """Return these items, of which those without a label have that of the same path in earlier items."""
        labels = dict(zip(earlier.absolute_paths(), earlier.labels.tolist(), strict=True))
        labelled_paths = zip(self.paths.tolist(), self.labels.tolist(), strict=True)
        joined = _as_objects(label or labels.get(path, "") for path, label in labelled_paths)
        return IndexItems(self.ids, self.paths, joined)

    def join(self, later: "IndexItems") -> "IndexItems":
        """Return these items followed by items with larger ids."""
        return IndexItems(
            np.concatenate([self.ids, later.ids]),
            np.concatenate([self.paths, later.paths]),
            np.concatenate([self.labels, later.labels]),
        )

    def write(self, path: Path) -> None:
        """Write the items to a .parquet file."""
        table = pa.table({"id": self.ids, "path": self.paths, "label": self.labels})
        pq.write_table(table, path, write_page_checksum=True)

    @classmethod
    def read(cls, path: Path) -> "IndexItems":
        """Read the items from a .parquet file; pyarrow raises an exception if it is damaged."""
        with pq.ParquetFile(path, page_checksum_verification=True) as file:  # pq.read_table would import pandas
            columns = file.read(columns=["id", "path", "label"]).to_pydict()
        return cls(np.array(columns["id"], dtype=np.int64), _as_objects(columns["path"]), _as_objects(columns["label"]))


def _as_objects(texts: Iterable[str]) -> NDArray[np.object_]:
    """Return an array of texts, each of which takes the memory of its length; in one of strings all take the most."""
    array: NDArray[np.object_] = np.array([*texts], dtype=object)
    return array


def list_source(source: Source) -> tuple[list[str], list[str]]:
    """List the images of a source -> their paths, and the names of their classes; empty names where none is known.

    Args:
        source: folder of images or a list of them, see `dml.inference.image_inputs.list_named_images`; paths of images;
            or a table.

    Raises:
        InputError: if there is no image, the file can't be read, or a path isn't UTF-8, as the written files are.
    """
    source = unpack_paths(source)
    if not isinstance(source, str | Path | ImageTable | Iterable):
        raise InputError(f"images: {printable(type(source).__name__)}; expected {SOURCES}")
    paths, names = _list_images_and_classes(source)
    if not paths:
        raise InputError(f"images: there is none; give {SOURCES}")
    check_paths(paths, str(source) if isinstance(source, str | Path) else "")
    return paths, names


def _list_images_and_classes(source: Source) -> tuple[list[str], list[str]]:
    if isinstance(source, ImageTable):
        return source.paths.tolist(), [source.name_class(label) for label in source.labels[:, 0].tolist()]
    if not isinstance(source, str | Path):
        paths = [str(expand_home(path)) for path in source]
        return paths, [""] * len(paths)
    path = expand_home(source)
    if read_stamps([str(path)])[0, 0] == MISSING[0]:
        raise InputError(f"{printable(path)}: no such file{name_similar(path)}; give images, a list or folder of them")
    return list_named_images(source)
