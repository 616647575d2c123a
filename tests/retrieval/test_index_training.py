import os

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from dml.retrieval.vector_index import VectorIndex, find_codes, train_index

VECTORS = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)


class TalkingIndex(faiss.IndexFlatIP):
    """An index whose training only prints."""

    def train(self, _: npt.NDArray[np.float32]) -> None:
        """Print what FAISS's clusterings print, and another line."""
        line = b"WARNING clustering 400 points to 2 centroids: please provide at least %d training points\n"
        os.write(2, b"".join(line % number for number in (78, 9984, 624)))
        os.write(2, b"something else\n")


def test_the_most_vectors_that_are_asked_for_and_other_lines_stay(capfd: pytest.CaptureFixture[str]) -> None:
    assert train_index(TalkingIndex(8), VECTORS, "") == 9984
    assert capfd.readouterr().err == "something else\n"


def test_few_vectors_are_told_in_one_line(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    VectorIndex(8, "OPQ2,PQ2x6").train(VECTORS)  # FAISS prints 104 lines
    assert capfd.readouterr().err == ""
    assert [record.getMessage() for record in caplog.records] == [
        "factory=OPQ2,PQ2x6: it is trained with 400 vectors, and FAISS asks for 9,984; it may miss more neighbors"
    ]


def test_enough_vectors_are_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    VectorIndex(8, "IVF4,Flat").train(VECTORS)
    VectorIndex.check(8, "IVF64,PQ2x6", "", 10_000)  # tries it on few vectors
    assert not caplog.records


@pytest.mark.parametrize(
    ("factory", "parameters", "is_ordered"),
    [
        ("PQ2x4", "", False),
        ("OPQ2,PQ2x4", "", False),
        ("PQ2x4,RFlat", "", False),
        ("IVF4,PQ2x4", "nprobe=4", False),
        ("IVF4,PQ2x4", "nprobe=4,ht=6", True),
    ],
)
def test_codes_are_ordered_for_searches_that_use_the_order(factory: str, parameters: str, is_ordered: bool) -> None:
    index = VectorIndex(8, factory)
    index.set_parameters(parameters)
    index.train(VECTORS)
    assert find_codes(index._index).do_polysemous_training is is_ordered
