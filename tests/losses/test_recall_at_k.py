import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import draw_embeddings, published_cases
from torch import Tensor

from dml.losses import recall_at_k
from dml.losses.recall_at_k import RecallAtKLoss, similarity_mixup
from dml.runtime.errors import InputError
from dml.training.gradient_cache import embed_in_chunks


def step(gap: float) -> float:
    return 1 / (1 + math.exp(min(-gap, 700)))


def by_hand(
    items: Tensor, labels: list[int], recall_at: tuple[int, ...], temperatures: tuple[float, float], count_query: bool
) -> float:
    """Eq. 4-9 a query, a positive and an item at a time; the items are taken as they are."""
    similarities, everyone, total = (items @ items.T).tolist(), range(len(labels)), 0.0
    for query, similar in enumerate(similarities):
        positives = [p for p in everyone if labels[p] == labels[query] and p != query]
        ranks = []
        for p in positives:
            others = [j for j in everyone if j != p and (count_query or j != query)]
            ranks.append(1 + sum(step((similar[j] - similar[p]) / temperatures[0]) for j in others))
        for k in recall_at if positives else ():
            k = min(k, len(labels))
            hits = sum(step((k - rank) / temperatures[1]) for rank in ranks)
            total += (1 - min(k, hits) / min(k, len(positives))) / len(recall_at)
    return total / len(labels)


@pytest.mark.parametrize(("batch", "expected"), published_cases("modern", "recall_at_k"))
def test_equals_the_published_vectors(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    embeddings = torch.tensor(batch["embeddings"], dtype=torch.float64)
    value = RecallAtKLoss(**expected["params"])(embeddings, torch.tensor(batch["labels"]))
    assert value.item() == pytest.approx(expected["value"], abs=1e-9)


@pytest.mark.parametrize(("batch", "expected"), published_cases("modern", "recall_at_k_simix"))
def test_mixup_equals_the_published_vectors(
    batch: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings, labels = torch.tensor(batch["embeddings"], dtype=torch.float64), torch.tensor(batch["labels"])
    weights = torch.tensor(expected["weights"], dtype=torch.float64)
    items, classes = similarity_mixup(F.normalize(embeddings, dim=1), labels, weights)
    torch.testing.assert_close(items, torch.tensor(expected["mixed"], dtype=torch.float64))
    assert classes.tolist() == expected["mixed_labels"]
    monkeypatch.setattr(RecallAtKLoss, "_draw_weights", lambda *_: weights)
    value = RecallAtKLoss(**expected["params"], mixup=True)(embeddings, labels)
    assert value.item() == pytest.approx(expected["value"], abs=1e-9)


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=12),
    seed=st.integers(0, 1000),
    recall_at=st.sampled_from([(1,), (1, 2, 4, 8, 16), (3, 2)]),
    temperatures=st.sampled_from([(0.01, 1.0), (0.1, 0.5), (1.0, 2.0)]),
    count_query=st.booleans(),
    block=st.sampled_from([1, 40, 2**22]),
)
@examples(60)
def test_equals_a_loop_over_items(
    labels: list[int],
    seed: int,
    recall_at: tuple[int, ...],
    temperatures: tuple[float, float],
    count_query: bool,
    block: int,
) -> None:
    embeddings = draw_embeddings(len(labels), 5, seed)
    expected = by_hand(F.normalize(embeddings, dim=1), labels, recall_at, temperatures, count_query)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall_at_k, "BLOCK", block)
        value = RecallAtKLoss(recall_at, *temperatures, count_query)(embeddings, torch.tensor(labels))
    assert value.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("recall_at", "ranks"), [(3, (3,)), (np.int64(3), (3,)), (np.array([1, 2]), (1, 2))])
def test_ranks_may_be_numpys_numbers(recall_at: Any, ranks: tuple[int, ...]) -> None:
    assert RecallAtKLoss(recall_at).recall_at == ranks


@pytest.mark.parametrize("count_query", [True, False])
@pytest.mark.parametrize("block", [1, 40, 2**22])
def test_gradcheck(count_query: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_at_k, "BLOCK", block)
    loss, labels = RecallAtKLoss((1, 2, 8), 0.3, 0.7, count_query), torch.tensor([0, 0, 1, 1, 1, 2, 0, 1])
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), draw_embeddings(8, 5).requires_grad_())


def test_mixup_has_the_gradient_of_its_virtual_items(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.tensor([0.2, 0.9, 0.5, 0.0], dtype=torch.float64)
    monkeypatch.setattr(RecallAtKLoss, "_draw_weights", lambda *_: weights)
    loss, labels = RecallAtKLoss((1, 2), 0.3, mixup=True), torch.tensor([0, 1, 0, 1, 0])
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), draw_embeddings(5, 5).requires_grad_())


def test_mixup_takes_the_pairs_in_order() -> None:
    items, labels, weights = draw_embeddings(6, 5), [2, 5, 2, 5, 2, 7], [0.1, 0.2, 0.3, 0.4]
    pairs = [(i, j) for i, j in combinations(range(6), 2) if labels[i] == labels[j]]
    mixed, classes = similarity_mixup(items, torch.tensor(labels), torch.tensor(weights, dtype=torch.float64))
    assert torch.equal(mixed[:6], items)
    for row, weight, (i, j) in zip(mixed[6:], weights, pairs, strict=True):
        torch.testing.assert_close(row, weight * items[i] + (1 - weight) * items[j])
    assert classes.tolist() == labels + [labels[i] for i, _ in pairs]


def test_mixup_refuses_a_wrong_number_of_weights() -> None:
    with pytest.raises(InputError, match=r"weights of shape \(2,\): the labels have 1 pairs"):
        similarity_mixup(draw_embeddings(3, 5), torch.tensor([0, 0, 1]), torch.zeros(2))


def test_mixup_draws_new_weights_for_each_batch_and_repeats_them_when_resumed() -> None:
    embeddings, labels = draw_embeddings(8, 5), torch.arange(8) // 4
    first, resumed = RecallAtKLoss(mixup=True), RecallAtKLoss(mixup=True)
    values = [first(embeddings, labels).item()]
    resumed.load_state_dict(first.state_dict())
    values += [first(embeddings, labels).item(), first(embeddings, labels).item()]
    assert len(set(values)) == 3
    assert [resumed(embeddings, labels).item() for _ in range(2)] == values[1:]


@pytest.mark.parametrize("mixup", [False, True])
def test_the_gradient_cache_changes_no_gradient(mixup: bool) -> None:
    images, labels = draw_embeddings(20, 5), torch.arange(20) // 4
    gradients = []
    for size in (20, 3):  # the whole batch, and chunks
        torch.manual_seed(0)
        network = torch.nn.ModuleDict({"H": torch.nn.Linear(5, 4, bias=False).double()})
        network.forward = lambda batch, network=network: {"H": network["H"](batch)}
        RecallAtKLoss(temperature=0.1, mixup=mixup)(embed_in_chunks(network, images, size)["H"], labels).backward()
        gradients.append(network["H"].weight.grad)
    assert gradients[0].any()
    torch.testing.assert_close(gradients[0], gradients[1])
