"""Files of embedded images, for other programs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dml.inference.image_inputs import check_readable
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.filesystem.files import replacing

SUFFIXES = (".parquet", ".npz")


def check_output(file: Path) -> None:
    """Check the name of a file of embedded images.

    Raises:
        InputError: if it doesn't end with one of `SUFFIXES`.
    """
    if file.suffix not in SUFFIXES:
        raise InputError(f"--output {printable(file)}: the name must end with {' or '.join(SUFFIXES)}")


def make_table(
    paths: Sequence[str], labels: Sequence[str], vectors: NDArray[np.float32], facts: Mapping[str, str]
) -> pa.Table:
    """Make a table with the columns path, label and vector of the images that could be read.

    Args:
        paths: (N,) paths of the images.
        labels: (N,) names of their classes; empty strings where none is known.
        vectors: (N, D) vectors; a row of NaN is an image that could not be read.
        facts: metadata of the table, such as the model's fingerprint.
    """
    rows = np.flatnonzero(~np.isnan(vectors[:, 0])).tolist()
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors[rows].reshape(-1)), vectors.shape[1])
    columns = {
        "path": pa.array([paths[row] for row in rows], pa.string()),
        "label": pa.array([labels[row] for row in rows], pa.string()),
        "vector": column,
    }
    return pa.table(columns).replace_schema_metadata(dict(facts))


def write_embeddings(file: Path, tables: Iterable[pa.Table], facts: Mapping[str, str], images: int) -> None:
    """Write tables that `make_table` made to one file.

    Args:
        file: file to write. A .parquet file has the columns path, label and vector, and the facts in its metadata;
            one table is in memory at a time. A .npz file has the arrays paths, labels and vectors, and one for each
            fact.
        tables: tables of the images, in their order.
        facts: facts such as the model's fingerprint and geometry.
        images: number of all images, those that could not be read among them.

    Raises:
        InputError: if the file's name ends otherwise, or not one image could be read.
    """
    check_output(file)
    if file.suffix == ".npz":
        whole = pa.concat_tables(table.replace_schema_metadata(None) for table in tables)
        check_readable(len(whole), images)
        with replacing(file) as partial, partial.open("wb") as opened:
            np.savez(opened, allow_pickle=False, **_as_arrays(whole), **{key: np.array(facts[key]) for key in facts})
        return
    described = (table.replace_schema_metadata(dict(facts)) for table in tables)
    with replacing(file) as partial:
        check_readable(_write_parquet(partial, described), images)


def _write_parquet(file: Path, tables: Iterator[pa.Table]) -> int:
    """Write tables to a .parquet file, and return the number of their rows."""
    first = next(tables)
    rows = len(first)
    with pq.ParquetWriter(file, first.schema, write_page_checksum=True) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
            rows += len(table)
    return rows


def _as_arrays(table: pa.Table) -> dict[str, NDArray[np.generic]]:
    """Return the columns of a table as arrays: paths (N,) and labels (N,) of strings, vectors (N, D) float32."""
    vectors = table.column("vector").combine_chunks()
    return {
        "paths": np.array(table.column("path").to_pylist(), dtype=np.str_),
        "labels": np.array(table.column("label").to_pylist(), dtype=np.str_),
        "vectors": vectors.flatten().to_numpy().reshape(len(vectors), -1),
    }
