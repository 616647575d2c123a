import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import check_against_loop, draw_embeddings, published_cases
from torch import Tensor

from dml.losses.rll import RankedListLoss


def build(params: dict[str, float]) -> RankedListLoss:
    return RankedListLoss(
        alpha=params["alpha"],
        margin=params["margin"],
        negative_temperature=params["t_neg"],
        positive_temperature=params["t_pos"],
        negative_weight=params["lam"],
    )


def by_hand(embeddings: Tensor, labels: Tensor, loss: RankedListLoss) -> Tensor:
    """Eq. 8-14, a query and a pair at a time."""
    unit = F.normalize(embeddings, dim=1)
    total = torch.zeros((), dtype=embeddings.dtype)
    for i, query in enumerate(unit):
        positives: list[Tensor] = []
        negatives: list[Tensor] = []
        for j, other in enumerate(unit.detach() if loss.detach_gallery else unit):
            distance = (query - other).norm() if not torch.equal(query, other) else torch.zeros((), dtype=query.dtype)
            if i != j and labels[i] == labels[j] and distance > loss.alpha - loss.margin:
                positives.append(distance - (loss.alpha - loss.margin))
            if labels[i] != labels[j] and distance < loss.alpha:
                negatives.append(loss.alpha - distance)
        if sum(int(label == labels[i]) for label in labels) == 1:
            continue
        for violations, temperature, share in (
            (positives, loss.positive_temperature, 1 - loss.negative_weight),
            (negatives, loss.negative_temperature, loss.negative_weight),
        ):
            weights = [math.exp(temperature * violation.item()) for violation in violations]
            for weight, violation in zip(weights, violations, strict=True):
                total = total + share * weight / sum(weights) * violation
    return total / len(unit)


@pytest.mark.parametrize(("batch", "expected"), published_cases("losses", "ranked_list"))
def test_equals_the_published_vectors(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    embeddings = torch.tensor(batch["embeddings"], dtype=torch.float64)
    labels = torch.tensor(batch["labels"])
    unit = F.normalize(embeddings, dim=1).requires_grad_()
    value = build(expected["params"])(unit, labels)
    value.backward()
    gradient = torch.tensor(expected["grad_normalised"], dtype=torch.float64)
    # the loss normalizes again, which keeps of a gradient what is tangent to the sphere
    tangent = gradient - (gradient * unit.detach()).sum(dim=1, keepdim=True) * unit.detach()

    assert value.item() == pytest.approx(expected["value"], abs=1e-9)
    torch.testing.assert_close(unit.grad, tangent, atol=1e-9, rtol=0)
    assert build(expected["params"])(embeddings.float(), labels).item() == pytest.approx(expected["value"], rel=1e-4)


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=14),
    seed=st.integers(0, 10_000),
    margin=st.sampled_from([0.2, 0.4, 1.2]),
    temperatures=st.tuples(st.sampled_from([0.0, 10.0, 40.0]), st.sampled_from([-5.0, 0.0, 10.0])),
    detach=st.booleans(),
    duplicates=st.booleans(),
)
@examples(60)
def test_equals_a_loop_over_pairs(
    labels: list[int],
    seed: int,
    margin: float,
    temperatures: tuple[float, float],
    detach: bool,
    duplicates: bool,
) -> None:
    loss = RankedListLoss(
        margin=margin,
        negative_temperature=temperatures[0],
        positive_temperature=temperatures[1],
        detach_gallery=detach,
    )
    embeddings = draw_embeddings(len(labels), 3, seed)
    if duplicates:
        embeddings[-1] = embeddings[0]
    numbers = torch.tensor(labels)
    check_against_loop(loss, lambda rows: by_hand(rows, numbers, loss), embeddings, numbers)


def test_gradient_reaches_the_query_only() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 1])
    RankedListLoss()(embeddings, labels).backward()
    # the third is a query without positives; were it part of the others' gallery with gradients, it would move
    assert embeddings.grad is not None
    assert embeddings.grad[2].abs().max() == 0
    assert embeddings.grad[:2].abs().max() > 0


@pytest.mark.parametrize("temperature", [1e3, 1e6])
def test_a_huge_temperature_takes_the_hardest_negative(temperature: float) -> None:
    embeddings = draw_embeddings(12, 4, seed=1, dtype=torch.float32)
    labels = torch.arange(12) // 3
    loss = RankedListLoss(negative_temperature=temperature, negative_weight=1.0)
    unit = F.normalize(embeddings, dim=1)
    distances = torch.cdist(unit, unit).masked_fill(labels[:, None] == labels, torch.inf)
    hardest = (loss.alpha - distances.min(dim=1).values).clamp(min=0).mean()
    assert loss(embeddings, labels).item() == pytest.approx(hardest.item(), abs=1e-4)


def test_defaults_are_rll_simpler() -> None:
    loss = RankedListLoss(margin=0.4)
    assert loss.alpha == pytest.approx(1.2)
    assert RankedListLoss(alpha=1.4, margin=0.2).alpha == 1.4


def test_alpha_follows_a_margin_that_a_schedule_changes_unless_it_is_given() -> None:
    for loss, alpha in ((RankedListLoss(), 1.4), (RankedListLoss(alpha=1.2), 1.2)):
        loss.margin = 0.8
        assert loss.alpha == alpha
        loss.alpha = 1.3
        assert loss.alpha == 1.3
