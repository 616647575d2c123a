import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dml.evaluation import evaluate
from dml.evaluation.raw_features import recall_among
from dml.runtime.errors import InputError


def by_loops(embeddings: np.ndarray, labels: np.ndarray, neighbors: np.ndarray, k: int) -> float:
    """The share of queries with a positive anywhere that have one among the k most similar of their neighbors."""
    unit = embeddings.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    hits = []
    for query, own in enumerate(neighbors.tolist()):
        if (labels == labels[query]).sum() > 1:
            ranked = sorted(own, key=lambda item: (-(unit[query] @ unit[item]), item))
            hits.append(any(labels[item] == labels[query] for item in ranked[:k]))
    return float(np.mean(hits))


@examples(40)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 8))
def test_recall_is_that_of_loops(seed: int, number: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    embeddings = rng.standard_normal((12, 3)).astype(np.float32)
    labels = np.stack([np.r_[0, 0, rng.integers(0, 5, 10)], np.arange(12) % 2], axis=1)
    others = [rng.permutation(np.delete(np.arange(12), query))[:number] for query in range(12)]
    neighbors = np.stack(others)
    found = recall_among(embeddings, labels, torch.from_numpy(neighbors), (k,))
    for level in range(2):
        assert found[f"level{level}/recall@{k}"] == by_loops(embeddings, labels[:, level], neighbors, k)


def test_among_all_items_it_is_the_plain_recall() -> None:
    rng = np.random.default_rng(0)
    embeddings, labels = rng.standard_normal((5000, 4)).astype(np.float32), rng.integers(0, 900, 5000)
    plain = evaluate(embeddings[:30], labels[:30] % 7, metrics=["recall"], recall_at=(1, 3))
    others = torch.stack([torch.cat([torch.arange(query), torch.arange(query + 1, 30)]) for query in range(30)])
    found = recall_among(embeddings[:30], labels[:30] % 7, others, (1, 3))
    assert found == {name: value for name, value in plain.items() if "recall" in name}
    # more queries than are ranked at a time: each may find itself one further on, and a random item
    next_one = torch.stack([(torch.arange(5000) + 1) % 5000, torch.randint(5000, (5000,))], dim=1)
    by_hand = recall_among(embeddings, np.arange(5000) // 2, next_one, (2,))["level0/recall@2"]
    hit = (np.arange(5000)[:, None] // 2 == next_one.numpy() // 2).any(axis=1)
    assert by_hand == pytest.approx(hit.mean())


def test_faults_are_one_line() -> None:
    rows, neighbors = np.eye(3, dtype=np.float32), torch.tensor([[1], [2], [0]])
    with pytest.raises(InputError, match="3 embeddings, 2 labels"):
        recall_among(rows, [0, 0], neighbors)
    with pytest.raises(InputError, match="level0: none of the 3 queries has a positive"):
        recall_among(rows, [0, 1, 2], neighbors)
