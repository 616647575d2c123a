"""FAISS's kinds of index: where they keep vectors, how precise their scores are, and how they are trained."""

import os
import re
import tempfile
from typing import Any

import faiss

from dml.retrieval.faiss_search import Floats, copy_to_gpus

PRECISE_NUMBERS = (
    faiss.ScalarQuantizer.QT_8bit,
    faiss.ScalarQuantizer.QT_8bit_uniform,
    faiss.ScalarQuantizer.QT_fp16,
    faiss.ScalarQuantizer.QT_bf16,
)
"""The codes of single numbers that change the inner product of two unit vectors by less than 0.01.

Measured on vectors of 32 dimensions: 8 bits change it by up to 0.004, 6 bits by 0.016, 4 bits by 0.07, and product or
residual codes by 0.14 to 0.5.
"""


def find_core(index: Any) -> Any:
    """Return the index inside of an index that only has ids, or only transforms the vectors."""
    index = faiss.downcast_index(index)
    return find_core(index.index) if isinstance(index, faiss.IndexIDMap | faiss.IndexPreTransform) else index


def find_codes(index: Any) -> Any:
    """Return the part of an index that searches codes of the vectors, whatever computes the scores anew after it."""
    core = find_core(index)
    return find_codes(core.base_index) if isinstance(core, faiss.IndexRefine) else core


def find_lists(index: Any) -> Any:
    """Return the part of an index that keeps the vectors in inverted lists, with ids of its own; None without one.

    `faiss.IndexIDMap2` around such an index finds other images after a removal: it moves its ids, and the lists don't.
    """
    core = find_core(index)
    return core if isinstance(core, faiss.IndexIVF) else None


def keeps_products(index: Any) -> bool:
    """Return whether the transforms that an index applies to its vectors keep the inner products: rotations alone do.

    A PCA subtracts the mean of the vectors, and a matrix to fewer numbers, or a normalization, changes them.
    """
    index = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
    if not isinstance(index, faiss.IndexPreTransform):
        return True
    chain: Any = index.chain
    return all(_is_rotation(chain.at(place)) for place in range(chain.size()))


def keeps_numbers(index: Any) -> bool:
    """Return whether an index computes its scores from numbers of at least 8 bits, see `PRECISE_NUMBERS`."""
    core = find_core(index)
    if isinstance(core, faiss.IndexRefine):
        return keeps_numbers(core.refine_index)
    if isinstance(core, faiss.IndexHNSW | faiss.IndexNSG):
        graph: Any = core  # the type stubs of FAISS lack the storage of some
        return keeps_numbers(graph.storage)
    if isinstance(core, faiss.IndexScalarQuantizer | faiss.IndexIVFScalarQuantizer):
        return core.sq.qtype in PRECISE_NUMBERS
    return isinstance(core, faiss.IndexFlat | faiss.IndexIVFFlat)


def _is_rotation(transform: Any) -> bool:
    """Whether a transform of FAISS only turns the vectors; a file has a trained matrix as a linear transform."""
    transform = faiss.downcast_VectorTransform(transform)
    is_orthonormal = isinstance(transform, faiss.RandomRotationMatrix | faiss.OPQMatrix) or (
        type(transform) is faiss.LinearTransform and transform.is_orthonormal and not transform.have_bias
    )
    return is_orthonormal and transform.d_in == transform.d_out


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
