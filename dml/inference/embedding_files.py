"""Files of embedded images."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dml.inference.image_inputs import check_readable
from dml.retrieval.rows import stack_rows
from dml.runtime.console import progress_bar
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.paths import absolute_path, expand_home
from dml.runtime.text import printable

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
    columns = {
        "path": pa.array([paths[row] for row in rows], pa.string()),
        "label": pa.array([labels[row] for row in rows], pa.string()),
        "vector": column,
    }
    return pa.table(columns).replace_schema_metadata(dict(facts))


def make_tables(
    names: Sequence[str], labels: Sequence[str], blocks: Iterable[NDArray[np.float32]]
) -> Iterator[pa.Table]:
    """Make tables of some thousand images each while blocks of vectors (n, D) are embedded; see `make_table`."""
    first, waiting = 0, list[NDArray[np.float32]]()
    with progress_bar("embedded", len(names)) as advance:
        for block in blocks:
            waiting.append(block)
            advance(len(block))
            end = first + sum(map(len, waiting))
            if end - first >= CHUNK or end == len(names):
                yield make_table(names[first:end], labels[first:end], np.concatenate(waiting), {})
                first, waiting = end, []


def write_embeddings(file: Path, tables: Iterable[pa.Table], facts: Mapping[str, str], images: int) -> None:
    """Write tables that `make_table` made to one file.

    A .parquet file has the columns path, label and vector, and the facts in its metadata; one table is in memory at a
    time. A .npz file has the arrays paths, labels and vectors, and one for each fact. ``images`` counts those that
    could not be read too.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".npz":
        joined_table = pa.concat_tables(table.replace_schema_metadata(None) for table in tables)
        check_readable(len(joined_table), images)
        with replacing(file) as partial, partial.open("wb") as opened:
            np.savez(
                opened, allow_pickle=False, **as_arrays(joined_table), **{key: np.array(facts[key]) for key in facts}
            )
        return
    described = (table.replace_schema_metadata(dict(facts)) for table in tables)
    first = next(described)
    readable = 0
    with replacing(file) as partial:
        with pq.ParquetWriter(partial, first.schema, write_page_checksum=True) as writer:
            for table in chain([first], described):
                writer.write_table(table)
                readable += len(table)
        check_readable(readable, images)


def as_arrays(table: pa.Table) -> dict[str, NDArray[np.generic]]:
    """Return the columns of a table as arrays: paths (N,) and labels (N,) of strings, vectors (N, D) float32."""
    return {
        "paths": np.array(table.column("path").to_pylist(), dtype=np.str_),
        "labels": np.array(table.column("label").to_pylist(), dtype=np.str_),
        "vectors": stack_rows(table.column("vector")),
    }


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
