"""Files of embedded images, for other programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dml.inference.image_embedder import ImageEmbedder
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.files import replacing


def write_embeddings(
    file: Path, paths: Sequence[str], labels: Sequence[str], vectors: NDArray[np.float32], model: ImageEmbedder
) -> None:
    """Write the vectors of images to a file, without the images that could not be read.

    Args:
        file: file to write. A .parquet file has the columns path, label and vector, and in its metadata the model's
            fingerprint and geometry. A .npz file has the arrays paths, labels, vectors, fingerprint and geometry.
        paths: (N,) paths of the images.
        labels: (N,) names of their classes; empty strings where none is known.
        vectors: (N, D) vectors; a row of NaN is an image that could not be read.
        model: model that embedded the images.

    Raises:
        InputError: if the file's name ends otherwise.
    """
    is_read = ~np.isnan(vectors[:, 0])
    readable_rows = np.flatnonzero(is_read).tolist()
    paths, labels, vectors = (
        [paths[row] for row in readable_rows],
        [labels[row] for row in readable_rows],
        vectors[is_read],
    )
    facts = {"fingerprint": model.fingerprint, "geometry": model.geometry}
    if file.suffix == ".npz":
        arrays: dict[str, Any] = {"paths": np.array(paths), "labels": np.array(labels), "vectors": vectors, **facts}
        with replacing(file) as partial, partial.open("wb") as opened:
            np.savez(opened, **arrays)
    elif file.suffix == ".parquet":
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        table = pa.table({"path": paths, "label": labels, "vector": column}).replace_schema_metadata(facts)
        with replacing(file) as partial:
            pq.write_table(table, partial)
    else:
        raise InputError(f"{printable(file)}: the name must end with .parquet or .npz")
