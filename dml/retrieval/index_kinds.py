"""What FAISS's kinds of index do with vectors: where they keep them, and how precise their scores are."""

from typing import Any

import faiss

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

    A PCA subtracts the mean of the vectors, and a matrix to fewer numbers, or a normalisation, changes them.
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
