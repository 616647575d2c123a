"""Kinds of index of FAISS: what each finds after removals and additions, and whether its scores are products."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dml.retrieval.vector_index import VectorIndex
from dml.runtime.errors import InputError

DIMENSION = 16
NUMBER = 400
VECTORS = np.random.default_rng(0).normal(size=(NUMBER, DIMENSION)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
IDS = np.arange(NUMBER) + 1000

REMOVABLE = {
    "Flat": "",
    "SQfp16": "",
    "SQ8": "",
    "RR16,Flat": "",
    "IVF4,Flat": "nprobe=4",
    "IVF4,SQ8": "nprobe=4",
    "IVF4_HNSW8,Flat": "nprobe=4",
    "RR16,IVF4,SQ8": "nprobe=4",
}
"""Kinds of index that vectors can be removed from, and parameters with which they search all cells."""


def build(factory: str, parameters: str) -> VectorIndex:
    index = VectorIndex(DIMENSION, factory)
    if index.needs_training:
        index.train(VECTORS)
    index.set_parameters(parameters)
    index.add(VECTORS, IDS)
    return index


def find_first(index: VectorIndex, queries: npt.NDArray[np.float32]) -> list[int]:
    found: list[int] = index.search(queries, k=1)[1][:, 0].tolist()
    return found


@pytest.mark.parametrize("factory", REMOVABLE)
def test_each_vector_finds_itself_after_others_were_removed(factory: str, tmp_path: Path) -> None:
    index = build(factory, REMOVABLE[factory])
    is_removed = np.arange(NUMBER) % 3 == 0
    assert index.remove(IDS[is_removed]) == is_removed.sum()
    assert index.remove(IDS[is_removed]) == 0
    index.write(tmp_path / "index.faiss")
    opened = VectorIndex.read(tmp_path / "index.faiss", factory)
    opened.set_parameters(REMOVABLE[factory])
    for searched in (index, opened):
        assert len(searched) == (~is_removed).sum()
        assert find_first(searched, VECTORS[~is_removed]) == IDS[~is_removed].tolist()
    opened.make_changeable()
    opened.add(VECTORS[is_removed], IDS[is_removed] + NUMBER)
    opened.remove(IDS[1:2])
    expected = np.where(is_removed, IDS + NUMBER, IDS)
    assert find_first(opened, VECTORS[2:]) == expected[2:].tolist()


@pytest.mark.parametrize("factory", ["PQ8x4fs", "IVF4,PQ8x4fs", "RR16,PQ8x4fs"])
def test_packed_codes_refuse_removals(factory: str) -> None:
    """FAISS 1.15 removes vectors from them, and finds wrong ones after the next addition."""
    with pytest.raises(InputError, match=f"factory={factory}: an index of this kind can't remove or replace vectors"):
        build(factory, "").check_removal()


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        ("IVF64,Flat", "factory=IVF64,Flat: 64 cells for 12 vectors; Flat needs no cells"),
        ("OPQ4_8,IVF1000,PQ4", "factory=OPQ4_8,IVF1000,PQ4: 1,000 cells for 12 vectors"),
        ("IVF64,Flat,RFlat", "factory=IVF64,Flat,RFlat: 64 cells for 12 vectors"),
        ("IVF4,PQ4", "factory=IVF4,PQ4: 12 vectors can't train it"),
        ("PQ4", "factory=PQ4: 12 vectors can't train it"),
    ],
)
def test_too_few_vectors_are_told_before_there_are_any(factory: str, line: str) -> None:
    with pytest.raises(InputError) as refused:
        VectorIndex.check(DIMENSION, factory, "", 12)
    assert str(refused.value).startswith(line)
    VectorIndex.check(DIMENSION, factory, "", 2000)


@pytest.mark.parametrize(
    ("factory", "are_products"),
    [
        ("Flat", True),
        ("RR16,Flat", True),
        ("RR4,Flat", False),
        ("OPQ4_16,IVF4,Flat", True),
        ("OPQ4_8,IVF4,Flat", False),
        ("PCA16,Flat", False),
        ("PCAR16,IVF4,Flat", False),
        ("L2norm,Flat", False),
        ("RR16,PCA8,Flat", False),
        ("IVF4,SQ8", True),
    ],
)
def test_only_rotations_keep_the_products(factory: str, are_products: bool, tmp_path: Path) -> None:
    index = build(factory, "nprobe=4" if "IVF" in factory else "")
    index.write(tmp_path / "index.faiss")
    for one in (VectorIndex(DIMENSION, factory), index, VectorIndex.read(tmp_path / "index.faiss", factory)):
        assert one.keeps_products is are_products
    if are_products:
        scores, ids = index.search(VECTORS[:50], k=1)
        np.testing.assert_array_equal(ids[:, 0], IDS[:50])
        np.testing.assert_allclose(scores[:, 0], 1, atol=0.02)


@pytest.mark.parametrize(
    ("factory", "are_precise"),
    [
        ("HNSW8", True),
        ("HNSW8_SQ8", True),
        ("IVF4,SQ8", True),
        ("RR16,SQfp16", True),
        ("SQbf16", True),
        ("PQ8x4fs,RFlat", True),
        ("PQ8,Refine(SQ8)", True),
        ("SQ6", False),
        ("HNSW8_SQ4", False),
        ("PQ8", False),
        ("IVF4,PQ8x4fs", False),
        ("OPQ8,PQ8", False),
        ("RQ4x6", False),
        ("RaBitQ", False),
        ("PCA16,SQ8", False),
    ],
)
def test_precise_scores_are_products_to_a_hundredth(factory: str, are_precise: bool, tmp_path: Path) -> None:
    index = build(factory, "nprobe=4" if "IVF" in factory else "")
    index.write(tmp_path / "index.faiss")
    scores, ids = index.search(VECTORS, k=10)
    products = np.einsum("qd,qkd->qk", VECTORS, VECTORS[ids - IDS[0]])
    assert bool(np.abs(scores - products).max() < 0.01) is are_precise
    for one in (VectorIndex(DIMENSION, factory), index, VectorIndex.read(tmp_path / "index.faiss", factory)):
        assert one.scores_are_precise is are_precise
