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
    with pytest.raises(InputError, match=f"factory={factory}: FAISS can't remove"):
        build(factory, "").check_removal()


@pytest.mark.parametrize("factory", ["IVF64,Flat", "OPQ4_8,IVF1000,PQ4", "IVF64,Flat,RFlat", "IVF4,PQ4", "PQ4"])
def test_too_few_vectors_are_told_before_there_are_any(factory: str) -> None:
    with pytest.raises(InputError, match=f"^factory={factory}: .*12 vectors"):
        VectorIndex.check(DIMENSION, factory, "", 12)
    VectorIndex.check(DIMENSION, factory, "", 2000)


PRODUCTS = ["Flat", "RR16,Flat", "OPQ4_16,IVF4,Flat", "IVF4,SQ8"]
CHANGED = ["RR4,Flat", "OPQ4_8,IVF4,Flat", "PCA16,Flat", "PCAR16,IVF4,Flat", "L2norm,Flat", "RR16,PCA8,Flat"]


@pytest.mark.parametrize("factory", [*PRODUCTS, *CHANGED])
def test_only_rotations_keep_the_products(factory: str, tmp_path: Path) -> None:
    are_products = factory in PRODUCTS
    index = build(factory, "nprobe=4" if "IVF" in factory else "")
    index.write(tmp_path / "index.faiss")
    for one in (VectorIndex(DIMENSION, factory), index, VectorIndex.read(tmp_path / "index.faiss", factory)):
        assert one.keeps_products is are_products
    if are_products:
        scores, ids = index.search(VECTORS[:50], k=1)
        np.testing.assert_array_equal(ids[:, 0], IDS[:50])
        np.testing.assert_allclose(scores[:, 0], 1, atol=0.02)


PRECISE = ["HNSW8", "HNSW8_SQ8", "IVF4,SQ8", "RR16,SQfp16", "SQbf16", "PQ8x4fs,RFlat", "PQ8,Refine(SQ8)"]
ROUGH = ["SQ6", "HNSW8_SQ4", "PQ8", "IVF4,PQ8x4fs", "RQ4x6", "RaBitQ", "PCA16,SQ8"]


@pytest.mark.parametrize("factory", [*PRECISE, *ROUGH])
def test_precise_scores_are_products_to_a_hundredth(factory: str, tmp_path: Path) -> None:
    are_precise = factory in PRECISE
    index = build(factory, "nprobe=4" if "IVF" in factory else "")
    index.write(tmp_path / "index.faiss")
    scores, ids = index.search(VECTORS, k=10)
    products = np.einsum("qd,qkd->qk", VECTORS, VECTORS[ids - IDS[0]])
    assert bool(np.abs(scores - products).max() < 0.01) is are_precise
    for one in (VectorIndex(DIMENSION, factory), index, VectorIndex.read(tmp_path / "index.faiss", factory)):
        assert one.scores_are_precise is are_precise


def test_list_parameters_keeps_the_others() -> None:
    index = VectorIndex(16, "IVF4_HNSW4,Flat")
    index.set_parameters("quantizer_efSearch=32,nprobe=2")
    assert index.list_parameters() == [[f"quantizer_efSearch=32,nprobe={value}" for value in (1, 2, 4)]]
    assert VectorIndex(16, "SQ8").list_parameters() == [[""]]
    assert VectorIndex(16, "SQ4,RFlat").list_parameters() == [[f"k_factor_rf={2**n}" for n in range(7)]]
    both = VectorIndex(16, "IVF4,SQ4,RFlat").list_parameters()
    assert [len(row) for row in both] == [3] * 7
    assert (both[0][0], both[-1][-1]) == ("k_factor_rf=1,nprobe=1", "k_factor_rf=64,nprobe=4")
    assert len(VectorIndex(16, "HNSW8,Flat").list_parameters()[0]) > 1
