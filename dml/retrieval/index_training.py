"""The training of FAISS's approximate indexes, without what takes long and helps no search, and with one warning."""

import os
import re
import tempfile
from typing import Any

import faiss

from dml.retrieval.faiss_gpus import copy_to_gpus
from dml.retrieval.index_kinds import find_codes
from dml.retrieval.tied_neighbors import Floats

FEW_VECTORS = re.compile(rb"WARNING clustering \d+ points to \d+ centroids: please provide at least (\d+).*\n")
STDERR = 2


def train_index(index: Any, vectors: Floats, parameters: str) -> int:
    """Find the cells or codes of an index of FAISS.

    Args:
        index: index of FAISS.
        vectors: contiguous vectors (N, D) of type float32.
        parameters: search parameters of the index, such as "nprobe=32".

    Returns:
        The number of vectors that FAISS asks for, if there are fewer; 0 if there are enough. FAISS prints it, up to a
        thousand times, to the file descriptor of stderr. What else is printed there appears after the training.

    Raises:
        RuntimeError: if FAISS can't train the index with these vectors.
    """
    codes: Any = find_codes(index)
    if hasattr(codes, "do_polysemous_training"):
        # an order of the codes that only a search with this parameter uses; finding it takes a second for each byte
        codes.do_polysemous_training = "ht=" in parameters
    cells: Any = faiss.try_extract_index_ivf(index)
    on_gpus = None if cells is None else copy_to_gpus(faiss.IndexFlat(cells.d, cells.metric_type))
    if on_gpus is not None:
        cells.clustering_index = on_gpus
    stderr = os.dup(STDERR)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), STDERR)
        try:
            index.train(vectors)
        finally:
            if on_gpus is not None:
                cells.clustering_index, on_gpus.thisown = None, True  # or nobody would free it
            os.dup2(stderr, STDERR)
            os.close(stderr)
            printed.seek(0)
            text = printed.read()
            os.write(STDERR, FEW_VECTORS.sub(b"", text))
    return max(map(int, FEW_VECTORS.findall(text)), default=0)
