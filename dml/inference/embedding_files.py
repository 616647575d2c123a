"""Files of embedded images."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dml.inference.image_inputs import check_readable
from dml.retrieval.rows import stack_rows
from dml.runtime.errors import InputError
from dml.runtime.files import absolute_path, expand_home, replacing
from dml.runtime.text import printable, progress_bar

SUFFIXES = (".parquet", ".npz")

CHUNK = 4096
"""The number of images from which on their vectors are written."""


def check_output(file: Path) -> None:
    """Check the name of a file of embedded images."""
    if file.suffix not in SUFFIXES:
        raise InputError(f"--output {printable(file)}: the name must end with {' or '.join(SUFFIXES)}")


def make_table(
    paths: Sequence[str], labels: Sequence[str], vectors: NDArray[np.float32], facts: Mapping[str, str]
) -> pa.Table:
    """Make a table of path, label and vector (N, D) of the images whose vector isn't NaN, with facts as metadata."""
    rows = np.flatnonzero(~np.isnan(vectors[:, 0])).tolist()
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors[rows].reshape(-1)), vectors.shape[1])
    texts = {"path": paths, "label": labels}
    columns = {name: pa.array([column[row] for row in rows], pa.string()) for name, column in texts.items()}
    return pa.table(columns | {"vector": column}).replace_schema_metadata(dict(facts))


def join_blocks(
    blocks: Iterable[NDArray[np.float32]], images: int, size: int, advance: Callable[[int], object]
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Join blocks of the vectors (n, D) of all images, until they have ``size`` or a few more -> rows, and vectors."""
    first, waiting = 0, list[NDArray[np.float32]]()
    for block in blocks:
        waiting.append(block)
        advance(len(block))
        end = first + sum(map(len, waiting))
        if end - first >= size or end == images:
            yield slice(first, end), np.concatenate(waiting)
            first, waiting = end, []


def make_tables(
    names: Sequence[str], labels: Sequence[str], blocks: Iterable[NDArray[np.float32]]
) -> Iterator[pa.Table]:
    """Make tables of some thousand images each while blocks of vectors (n, D) are embedded; see `make_table`."""
    with progress_bar("embedded", len(names)) as advance:
        for rows, vectors in join_blocks(blocks, len(names), CHUNK, advance):
            yield make_table(names[rows], labels[rows], vectors, {})


def write_embeddings(file: Path, tables: Iterable[pa.Table], facts: Mapping[str, str], images: int) -> None:
    """Write tables that `make_table` made to one file.

    A .parquet file has the columns path, label and vector, and the facts in its metadata; one table is in memory at a
    time. A .npz file has the arrays paths, labels and vectors, and one for each fact. ``images`` counts those that
    could not be read too.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    described = (table.replace_schema_metadata(dict(facts)) for table in tables)
    if file.suffix == ".npz":
        table = pa.concat_tables(described)
        check_readable(len(table), images)
        texts = {f"{name}s": np.array(table.column(name).to_pylist(), np.str_) for name in ("path", "label")}
        arrays = texts | {"vectors": stack_rows(table.column("vector"))} | {key: np.array(facts[key]) for key in facts}
        with replacing(file) as partial, partial.open("wb") as opened:
            np.savez(opened, allow_pickle=False, **arrays)
        return
    first, readable = next(described), 0
    with replacing(file) as partial:
        with pq.ParquetWriter(partial, first.schema, write_page_checksum=True) as writer:
            for table in chain([first], described):
                writer.write_table(table)
                readable += len(table)
        check_readable(readable, images)


def name_images(paths: Sequence[str], root: str | Path | None) -> list[str]:
    """Return the paths to store: absolute, or relative to a folder, with forward slashes."""
    names = [*map(absolute_path, paths)]
    if root is not None:
        folder = absolute_path(expand_home(root))
        names = [Path(os.path.relpath(name, folder)).as_posix() for name in names]
        if outside := next((path for path, name in zip(paths, names, strict=True) if name.split("/")[0] == ".."), None):
            raise InputError(f"--root {printable(root)}: {printable(outside)} isn't in this folder")
    return names


def check_names(paths: Sequence[str], labels: Sequence[str]) -> None:
    """Check that paths and labels can be written as UTF-8, before hours of work."""
    for name in (*paths, *labels):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{printable(name)}: a name that isn't UTF-8 can't be stored; rename it") from error
