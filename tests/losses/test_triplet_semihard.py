import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import check_against_loop, draw_embeddings
from torch import Tensor

from dml.losses.triplet_semihard import TripletSemihardLoss


def by_hand(embeddings: Tensor, labels: Tensor, margin: float) -> Tensor:
    """A positive pair at a time, as the docstring of TensorFlow's function says."""
    terms = []
    for i, anchor in enumerate(embeddings):
        distances = [(anchor - other).square().sum() for other in embeddings]
        negatives = [distance for distance, label in zip(distances, labels, strict=True) if label != labels[i]]
        for j, positive in enumerate(distances):
            if j == i or labels[j] != labels[i]:
                continue
            farther = [negative for negative in negatives if negative > positive]
            chosen = min(farther) if farther else max(negatives, default=None)
            terms.append(0.0 * positive if chosen is None else torch.relu(margin + positive - chosen))
    return torch.stack(terms).sum() / len(terms) if terms else 0.0 * embeddings.sum()


def as_tensorflow(embeddings: Tensor, labels: Tensor, margin: float) -> Tensor:
    """The function of tensorflow/contrib/losses/python/metric_learning/metric_loss_ops.py, operation by operation."""
    size, column = len(labels), labels[:, None]
    norms = embeddings.square().sum(dim=1)
    pdist_matrix = (norms[:, None] + norms - 2.0 * embeddings @ embeddings.T).clamp(min=0.0)
    pdist_matrix = pdist_matrix * (1.0 - torch.eye(size))
    adjacency = column == column.T
    adjacency_not = ~adjacency
    pdist_matrix_tile = pdist_matrix.tile(size, 1)
    mask = adjacency_not.tile(size, 1) & (pdist_matrix_tile > pdist_matrix.T.reshape(-1, 1))
    mask_final = (mask.double().sum(dim=1, keepdim=True) > 0.0).reshape(size, size).T
    negatives_outside = masked_minimum(pdist_matrix_tile, mask.double()).reshape(size, size).T
    negatives_inside = masked_maximum(pdist_matrix, adjacency_not.double()).tile(1, size)
    semi_hard_negatives = torch.where(mask_final, negatives_outside, negatives_inside)
    loss_mat = margin + pdist_matrix - semi_hard_negatives
    mask_positives = adjacency.double() - torch.eye(size)
    return (loss_mat * mask_positives).clamp(min=0.0).sum() / mask_positives.sum()


def masked_maximum(data: Tensor, mask: Tensor) -> Tensor:
    lowest = data.amin(dim=1, keepdim=True)
    return ((data - lowest) * mask).amax(dim=1, keepdim=True) + lowest


def masked_minimum(data: Tensor, mask: Tensor) -> Tensor:
    highest = data.amax(dim=1, keepdim=True)
    return ((data - highest) * mask).amin(dim=1, keepdim=True) + highest


LABELS = st.lists(st.integers(0, 4), min_size=2, max_size=14)


@given(labels=LABELS, seed=st.integers(0, 10_000), margin=st.sampled_from([0.0, 0.2, 1.0, 5.0]))
@examples(80)
def test_equals_a_loop_over_positive_pairs(labels: list[int], seed: int, margin: float) -> None:
    embeddings, numbers = draw_embeddings(len(labels), 3, seed), torch.tensor(labels)
    check_against_loop(TripletSemihardLoss(margin), lambda rows: by_hand(rows, numbers, margin), embeddings, numbers)


@given(labels=LABELS.filter(lambda labels: 1 < len(set(labels)) < len(labels)), seed=st.integers(0, 10_000))
@examples(80)
def test_equals_tensorflows_function(labels: list[int], seed: int) -> None:
    embeddings, numbers = draw_embeddings(len(labels), 3, seed), torch.tensor(labels)
    check_against_loop(TripletSemihardLoss(), lambda rows: as_tensorflow(rows, numbers, 1.0), embeddings, numbers)


@given(labels=LABELS, seed=st.integers(0, 10_000))
@examples(40)
def test_ties_are_no_farther(labels: list[int], seed: int) -> None:
    # points of a small grid: many squared distances are equal
    embeddings = torch.randint(0, 3, (len(labels), 2), generator=torch.Generator().manual_seed(seed)).double()
    value = TripletSemihardLoss()(embeddings, torch.tensor(labels))
    torch.testing.assert_close(value, by_hand(embeddings, torch.tensor(labels), 1.0))


def test_the_two_kinds_of_negatives() -> None:
    line, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 0])
    # pairs (0, 1), (1, 0), (1, 3), (3, 1): the negative at 3 is farther than the positive from 0 to 1 alone;
    # (0, 3) and (3, 0) at 16, (1, 3) and (3, 1) at 9 have no negative beyond them and take the farthest, the only one
    terms = [1 + 1 - 9, 1 + 16 - 9, 1 + 1 - 4, 1 + 9 - 4, 1 + 16 - 1, 1 + 9 - 1]
    expected = sum(max(0, term) for term in terms) / 6
    assert TripletSemihardLoss()(line, labels).item() == pytest.approx(expected)


def test_one_class_adds_nothing() -> None:
    embeddings = draw_embeddings(5, 3).requires_grad_()
    value = TripletSemihardLoss()(embeddings, torch.zeros(5, dtype=torch.long))
    value.backward()
    assert value == 0
    assert embeddings.grad is not None
    assert (embeddings.grad == 0).all()


@pytest.mark.parametrize("block", [1, 300, 10**6])
def test_distances_by_blocks_of_rows_are_the_same(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a block bounds the memory of the backward pass."""
    found, labels = [], torch.arange(12) // 3
    for _ in range(2):
        embeddings = draw_embeddings(12, 5).requires_grad_()
        value = TripletSemihardLoss()(embeddings, labels)
        found.append((value, *torch.autograd.grad(value, embeddings)))
        monkeypatch.setattr("dml.losses.triplet_semihard.block_size", lambda *_, **__: block)
    for in_blocks, whole in zip(*found, strict=True):
        torch.testing.assert_close(in_blocks, whole, rtol=1e-12, atol=1e-14)


def test_nan_stays_nan() -> None:
    embeddings = draw_embeddings(6, 3)
    embeddings[2, 1] = torch.nan
    assert TripletSemihardLoss()(embeddings, torch.arange(6) // 2).isnan()
