from itertools import chain
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from loss_batches import check_against_loop, draw_embeddings, published_cases
from torch import Tensor

from dml.losses.compose import WeightedSum
from dml.losses.loss_contract import has_trait
from dml.losses.regularizers import EmbeddingDrift
from dml.losses.tuplet import TupletLoss
from dml.ops.training_protocols import EmbeddingBank, UsesEmbeddingBank
from dml.runtime.errors import InputError
from dml.samplers.local_neighborhood import LocalNeighborhoodSampler

FORMS = ["centralized", "pairwise", "cross_entropy"]


def of_a_center(products: Tensor, positives: list[int], negatives: list[int], form: str) -> Tensor:
    """Eq. 3.1, 3.5 and 3.3, with the products of a center and each row (B,)."""
    zero = products.new_zeros(())
    others = sum((products[k].exp() for k in positives + negatives), zero)
    if form == "centralized":
        return -torch.log(sum((products[j].exp() for j in positives), zero) / len(positives) / others)
    if form == "pairwise":
        pairs = [(products[k] - products[j]).exp() for j in positives for k in negatives]
        return torch.log(1 + sum(pairs, zero) / len(positives))
    return sum((-torch.log(products[j].exp() / others) / len(positives) for j in positives), zero)


def by_hand(embeddings: Tensor, labels: list[int], form: str) -> Tensor:
    terms = []
    for i, center in enumerate(embeddings):
        positives = [j for j in range(len(labels)) if j != i and labels[j] == labels[i]]
        negatives = [j for j in range(len(labels)) if labels[j] != labels[i]]
        if positives:
            products = torch.stack([center @ other for other in embeddings])
            terms.append(of_a_center(products, positives, negatives, form))
    return torch.stack(terms).mean() if terms else torch.zeros((), dtype=embeddings.dtype)


@pytest.mark.parametrize(("batch", "expected"), published_cases("losses", "tuplet"))
def test_equals_the_published_vectors(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    embeddings = torch.tensor(batch[expected["input"]], dtype=torch.float64)
    labels = torch.tensor(batch["labels"])
    loss = TupletLoss(**expected["params"])
    assert loss(embeddings, labels).item() == pytest.approx(expected["value"], abs=1e-9)
    assert loss(embeddings.float(), labels).item() == pytest.approx(expected["value"], rel=1e-4)


@pytest.mark.parametrize("form", FORMS)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-6, 0.3, 2.0]),
    duplicates=st.booleans(),
)
@example(labels=[2, 0, 1, 2], seed=0, scale=2.0, duplicates=False)  # above 20, where PyTorch's softplus is 2e-9 off
@examples(40)
def test_equals_a_loop_over_centers(form: Any, labels: list[int], seed: int, scale: float, duplicates: bool) -> None:
    embeddings = scale * draw_embeddings(len(labels), 3, seed)
    if duplicates:
        embeddings[-1] = embeddings[0]
    check_against_loop(TupletLoss(form), lambda rows: by_hand(rows, labels, form), embeddings, torch.tensor(labels))


def test_the_forms_are_one_for_one_positive() -> None:
    embeddings = draw_embeddings(8, 4, seed=1)
    values = [
        TupletLoss(form)(embeddings, torch.arange(8) // 2) for form in ("centralized", "pairwise", "cross_entropy")
    ]
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])


@pytest.mark.parametrize("form", FORMS)
def test_long_embeddings_do_not_overflow(form: Any) -> None:
    # products of 1e4: exp overflows, the loss is their difference
    embeddings = torch.tensor([[100.0, 0.0], [0.0, 100.0], [100.0, 1.0]])
    value = TupletLoss(form)(embeddings, torch.tensor([0, 0, 1]))
    assert value.item() == pytest.approx((10_000 + 100) / 2, rel=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_divides_by_the_centers_with_a_positive(form: Any) -> None:
    embeddings = draw_embeddings(5, 3, seed=2, dtype=torch.float32)
    alone = torch.cat([embeddings, torch.zeros(1, 3)])
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    # one more negative at the origin adds exp(0) to the sums, but no center
    by_loop = by_hand(alone.double(), labels.tolist(), form)
    assert TupletLoss(form)(alone, labels).item() == pytest.approx(by_loop.item(), rel=1e-5)


def test_refuses_another_form() -> None:
    with pytest.raises(InputError, match="form=triplet: must be one of centralized, pairwise, cross_entropy, k_n"):
        TupletLoss("triplet")  # type: ignore[arg-type]


def bank_of(images: int, neighbors: int, seed: int) -> EmbeddingBank:
    places = draw_embeddings(images, 2, seed)
    distances = torch.cdist(places, places).fill_diagonal_(torch.inf)
    return EmbeddingBank(places, distances.argsort(dim=1)[:, :neighbors])


def of_the_drawn_centers(embeddings: Tensor, labels: Tensor, groups: list[list[int]]) -> Tensor:
    """Eq. 3.4: a group is the positions of a center and of its neighbors in the batch."""
    terms = []
    for center, *neighbors in groups:
        positives = [j for j in neighbors if labels[j] == labels[center]]
        negatives = [j for j in neighbors if labels[j] != labels[center]]
        products = torch.stack([embeddings[center] @ other for other in embeddings])
        terms.append(of_a_center(products, positives, negatives, "centralized"))
    return torch.stack(terms).mean()


@pytest.mark.parametrize("batch_size", [20, 23, 25])  # four groups of five; a cut fifth group of three; five groups
def test_equation_3_4_is_of_the_drawn_centers_alone(batch_size: int) -> None:
    classes, bank = torch.arange(120) % 6, bank_of(120, neighbors=4, seed=3)
    sampler = LocalNeighborhoodSampler(classes, bank.neighbors.numpy(), batch_size, num_neighbors=4)
    loss = TupletLoss("k_nearest")
    loss.set_embedding_bank(bank)
    for number, rows in enumerate(sampler):
        groups = [[group.center, *group.members] for group in sampler.groups(number)]
        assert [*chain(*groups)] == rows
        fast = draw_embeddings(batch_size, 3, seed=number).requires_grad_()
        slow = fast.detach().clone().requires_grad_()
        value = loss(fast, classes[rows], torch.tensor(rows))
        expected = of_the_drawn_centers(slow, classes[rows], [[rows.index(row) for row in group] for group in groups])
        torch.testing.assert_close(value, expected, atol=1e-9, rtol=1e-9)
        value.backward()
        expected.backward()
        torch.testing.assert_close(fast.grad, slow.grad, atol=1e-9, rtol=1e-9)
        assert value != TupletLoss("centralized")(fast, classes[rows])


def test_equation_3_4_needs_the_neighbors_of_the_sampler() -> None:
    loss, embeddings, labels = TupletLoss("k_nearest"), draw_embeddings(4, 3), torch.tensor([0, 0, 1, 1])
    for bank in (None, EmbeddingBank(torch.eye(4))):
        if bank is not None:
            loss.set_embedding_bank(bank)
        with pytest.raises(InputError, match=r"loss\.form=k_nearest: needs the neighbors of sampler=local"):
            loss(embeddings, labels, torch.arange(4))
    loss.set_embedding_bank(bank_of(4, neighbors=2, seed=0))
    with pytest.raises(InputError, match="needs the neighbors"):
        loss(embeddings, labels)


def test_only_equation_3_4_uses_the_embedding_bank() -> None:
    """The bank costs a pass over all training images, which the other forms don't need."""
    assert isinstance(TupletLoss("k_nearest"), UsesEmbeddingBank)
    assert has_trait(WeightedSum({"tuplet": TupletLoss("k_nearest")}, {"tuplet": 1.0}), "needs_indices")
    for form in FORMS:
        assert not isinstance(TupletLoss(form), UsesEmbeddingBank)  # type: ignore[arg-type]
        assert not has_trait(TupletLoss(form), "needs_indices")  # type: ignore[arg-type]
    assert isinstance(EmbeddingDrift(), UsesEmbeddingBank)
