import math
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import draw_embeddings, published_cases
from torch import Tensor

from dml.losses.nra import NonlinearRankApproximationLoss


def transferred(rank: Tensor, alpha: float) -> Tensor:
    return 0.5 * (2 * rank) ** alpha if rank < 0.5 else 1 - 0.5 * (2 * (1 - rank)) ** alpha


def by_hand(embeddings: Tensor, labels: Tensor, alpha: float, epsilon: float) -> Tensor:
    """Eq. 6-13, an anchor and a distance at a time."""
    total = torch.zeros((), dtype=embeddings.dtype)
    for i, anchor in enumerate(embeddings):
        others = [j for j in range(len(embeddings)) if j != i]
        distances = {j: (anchor - embeddings[j]).norm() for j in others}
        positives = [distances[j] for j in others if labels[j] == labels[i]]
        negatives = [distances[j] for j in others if labels[j] != labels[i]]
        if not positives or not negatives:
            continue
        largest, smallest = max(distances.values()), min(distances.values())
        spread = largest - smallest
        positive_rank = (max(positives) - smallest) / spread if spread else spread
        negative_rank = (min(negatives) - smallest) / spread if spread else spread
        positive_similarity = 1 - transferred(positive_rank, alpha)
        negative_similarity = 1 - transferred(negative_rank, alpha)
        total = total - torch.log(positive_similarity + epsilon) - torch.log(1 - negative_similarity + epsilon)
    return total / len(embeddings)


def gradient_of(value: Tensor, leaf: Tensor) -> Tensor:
    if value.requires_grad:
        value.backward()
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


@pytest.mark.parametrize(("batch", "expected"), published_cases("losses", "nonlinear_rank_approximation"))
def test_equals_the_published_vectors(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    embeddings = torch.tensor(batch["embeddings"], dtype=torch.float64)
    labels = torch.tensor(batch["labels"])
    loss = NonlinearRankApproximationLoss(alpha=expected["params"]["alpha"], epsilon=expected["params"]["eps"])
    assert loss(embeddings, labels).item() == pytest.approx(expected["value"], abs=1e-9)
    assert loss(embeddings.float(), labels).item() == pytest.approx(expected["value"], rel=1e-4)


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=14),
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([0.5, 1.0, 2.5, 4.0]),
    epsilon=st.sampled_from([1e-4, 1e-2]),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
@examples(60)
def test_equals_a_loop_over_anchors(labels: list[int], seed: int, alpha: float, epsilon: float, scale: float) -> None:
    embeddings = draw_embeddings(len(labels), 3, seed)
    fast, slow = (scale * embeddings).requires_grad_(), embeddings.requires_grad_()
    value = NonlinearRankApproximationLoss(alpha, epsilon)(fast, torch.tensor(labels))
    expected = by_hand(slow, torch.tensor(labels), alpha, epsilon)
    torch.testing.assert_close(value, expected, atol=1e-9, rtol=1e-9)
    # alpha < 1 has no slope at the nearest, where the loop's is infinite
    if alpha >= 1:
        torch.testing.assert_close(scale * gradient_of(value, fast), gradient_of(expected, slow), atol=1e-8, rtol=1e-6)


@given(labels=st.lists(st.integers(0, 2), min_size=2, max_size=10), seed=st.integers(0, 10_000))
@examples(40)
def test_ties_and_duplicates_are_ranked_as_in_the_loop(labels: list[int], seed: int) -> None:
    # points of a small grid: many distances coincide, and some points
    embeddings = torch.randint(0, 2, (len(labels), 3), generator=torch.Generator().manual_seed(seed)).double()
    leaf = embeddings.clone().requires_grad_()
    value = NonlinearRankApproximationLoss()(leaf, torch.tensor(labels))
    expected = by_hand(embeddings, torch.tensor(labels), 4.0, 1e-4)
    torch.testing.assert_close(value, expected, atol=1e-9, rtol=1e-9)
    assert gradient_of(value, leaf).isfinite().all()


def test_a_perfect_and_a_reversed_order() -> None:
    line = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    loss = NonlinearRankApproximationLoss(alpha=1.0, epsilon=1e-4)
    separate, mixed = loss(line, torch.tensor([0, 0, 1, 1])), loss(line, torch.tensor([0, 1, 1, 0]))
    assert separate < 0.25  # the outer two have r- = 9/10, the inner two 8/9, and r+ = 0
    assert mixed == pytest.approx(-2 * math.log(1e-4), rel=0.2)


def test_an_origin_far_away_changes_nothing() -> None:
    embeddings = draw_embeddings(12, 4, seed=1, dtype=torch.float32)
    labels = torch.arange(12) // 3
    loss = NonlinearRankApproximationLoss()
    assert loss(1e3 + embeddings, labels).item() == pytest.approx(loss(embeddings, labels).item(), rel=1e-2)


def test_coinciding_embeddings_have_rank_0_and_no_gradient() -> None:
    embeddings = torch.ones(4, 3, requires_grad=True)
    value = NonlinearRankApproximationLoss(alpha=1.0)(embeddings, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() == pytest.approx(-math.log(1 + 1e-4) - math.log(1e-4))
    assert embeddings.grad is not None
    assert (embeddings.grad == 0).all()


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_an_infinite_slope_at_the_nearest_is_cut(alpha: float) -> None:
    embeddings = draw_embeddings(8, 3, dtype=torch.float32).requires_grad_()
    NonlinearRankApproximationLoss(alpha=alpha)(embeddings, torch.arange(8) // 2).backward()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()
    assert embeddings.grad.abs().max() > 0


def test_one_class_has_nothing_to_rank() -> None:
    embeddings = torch.randn(5, 3, requires_grad=True)
    value = NonlinearRankApproximationLoss()(embeddings, torch.zeros(5, dtype=torch.long))
    value.backward()
    assert value == 0
    assert embeddings.grad is not None
    assert (embeddings.grad == 0).all()


def test_nan_stays_nan() -> None:
    embeddings = torch.randn(6, 3)
    embeddings[2, 1] = torch.nan
    assert NonlinearRankApproximationLoss()(embeddings, torch.arange(6) // 2).isnan()
