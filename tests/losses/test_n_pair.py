import math

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import draw_embeddings
from torch import Tensor

from dml.losses.n_pair import NPairLoss


def cross_entropy_of(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    return -torch.log(positive.exp() / (positive.exp() + sum(negative.exp() for negative in negatives)))


def symmetric(embeddings: Tensor, labels: list[int]) -> tuple[list[Tensor], list[int]]:
    """The terms of the positive pairs, and the rows whose norm counts."""
    terms, everyone = [], range(len(labels))
    for i in everyone:
        negatives = [embeddings[i] @ embeddings[k] for k in everyone if labels[k] != labels[i]]
        positives = [j for j in everyone if j != i and labels[j] == labels[i]]
        terms += [cross_entropy_of(embeddings[i] @ embeddings[j], negatives) for j in positives]
    return terms, list(everyone)


def published(embeddings: Tensor, labels: list[int]) -> tuple[list[Tensor], list[int]]:
    rows = {label: [i for i, other in enumerate(labels) if other == label] for label in labels}
    pairs = [own[:2] for own in rows.values() if len(own) > 1]
    terms = [
        cross_entropy_of(
            embeddings[anchor] @ embeddings[positive],
            [embeddings[anchor] @ embeddings[other] for _, other in pairs if other != positive],
        )
        for anchor, positive in pairs
    ]
    return terms, [row for pair in pairs for row in pair]


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=12),
    seed=st.integers(0, 10_000),
    form=st.sampled_from([symmetric, published]),
    norm_weight=st.sampled_from([0.0, 1e-3, 0.5]),
)
@examples(100)
def test_equals_a_loop_over_pairs(labels: list[int], seed: int, form: object, norm_weight: float) -> None:
    fast, slow = (draw_embeddings(len(labels), 3, seed).requires_grad_() for _ in range(2))
    terms, rows = (symmetric if form is symmetric else published)(slow, labels)
    expected = 0.0 * slow.sum()
    if terms:
        expected = sum(terms) / len(terms) + norm_weight * sum(slow[row] @ slow[row] for row in rows) / len(rows)
    name = "symmetric" if form is symmetric else "published"
    value = NPairLoss(name, norm_weight)(fast, torch.tensor(labels))
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(fast.grad, slow.grad)


@pytest.mark.parametrize("form", ["symmetric", "published"])
@pytest.mark.parametrize("gap", [50.0, 100.0, 1e4])
def test_a_gap_of_any_size_has_its_value_and_its_gradient(form: str, gap: float) -> None:
    """exp(88) is the largest that float32 holds: beyond it the library's loss stays at 87.3, without a gradient."""
    # two pairs; each anchor's positive has product 0, its negatives gap
    embeddings = gap**0.5 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    leaf = embeddings.requires_grad_()
    value = NPairLoss(form, norm_weight=0.0)(leaf, torch.tensor([0, 0, 1, 1]))  # type: ignore[arg-type]
    value.backward()
    negatives = 1 if form == "published" else 1 + math.exp(-gap)
    assert value.item() == pytest.approx(gap + math.log(negatives), rel=1e-6)
    assert leaf.grad is not None
    assert leaf.grad.abs().amax(dim=1).min() > 0.1 * gap**0.5
