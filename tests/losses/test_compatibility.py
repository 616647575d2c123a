"""Fixed classifiers: the influence loss and the regular simplex."""

import math

import pytest
import torch

from dml.losses.compatibility import InfluenceLoss, SimplexLoss, class_means, simplex_classifier
from dml.runtime.errors import InputError

NEW = torch.tensor([[0.6, 0.8], [0.8, -0.6]], dtype=torch.float64)
OLD = torch.eye(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("labels", "scale", "expected"),
    [
        ([1, 0], 1.0, 0.4092781397),
        ([1, 0], 16.0, 0.0199766667),
        ([0, 0], 1.0, 0.5092781397),
        ([0, 0], 16.0, 1.6199766667),
    ],
)
def test_worked_values(labels: list[int], scale: float, expected: float) -> None:
    assert InfluenceLoss(OLD, scale)(NEW, torch.tensor(labels)).item() == pytest.approx(expected, abs=1e-10)


def test_the_worked_terms() -> None:
    loss = InfluenceLoss(OLD, 1.0)
    terms = [loss(NEW[row : row + 1], torch.tensor([1 - row])).item() for row in (0, 1)]
    assert terms == pytest.approx([0.5981388694, 0.2204174099], abs=1e-10)


def test_images_of_classes_that_the_old_model_doesnt_know_are_dropped() -> None:
    """And their class is none of those that compete."""
    old = torch.cat([OLD, torch.zeros(1, 2, dtype=torch.float64)])
    embeddings = torch.cat([NEW, NEW]).requires_grad_()
    loss = InfluenceLoss(old, 1.0)
    value = loss(embeddings, torch.tensor([1, 0, 2, 2]))
    value.backward()
    assert value.item() == pytest.approx(0.4092781397, abs=1e-10)
    assert embeddings.grad is not None
    assert (embeddings.grad[2:] == 0).all()
    unknown = loss(embeddings, torch.full((4,), 2))
    unknown.backward()
    assert unknown.item() == 0
    assert embeddings.grad.isfinite().all()


def test_class_means_leave_out_what_cant_be_read() -> None:
    vectors = torch.tensor([[2.0, 0.0], [0.0, 3.0], [math.nan, math.nan], [math.nan, math.nan]])
    means = class_means(vectors, torch.tensor([0, 0, 1, 0]))
    torch.testing.assert_close(means, torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, 0.0]]))


@pytest.mark.parametrize(("num_classes", "cosine"), [(2, -1.0), (3, -0.5), (4, -1 / 3), (1024, -0.0009775171)])
def test_a_regular_simplex(num_classes: int, cosine: float) -> None:
    corners = simplex_classifier(num_classes)
    assert corners.shape == (num_classes, num_classes - 1)
    cosines = corners @ corners.T
    torch.testing.assert_close(cosines.diagonal(), torch.ones(num_classes).double(), rtol=0, atol=1e-12)
    others = cosines[~torch.eye(num_classes, dtype=torch.bool)]
    assert others.min().item() == pytest.approx(cosine, abs=1e-10)
    assert others.max().item() == pytest.approx(cosine, abs=1e-10)


def test_the_simplex_has_room_for_later_classes() -> None:
    """Two models of the same size have the same corners, however many classes they learn."""
    few, more = (SimplexLoss(count, 8) for count in (3, 9))
    assert torch.equal(few.classifier, more.classifier)
    assert few.state_dict() == {}
    with pytest.raises(InputError, match="embed_dim=8: a regular simplex of 10 classes needs 9 dimensions"):
        SimplexLoss(10, 8)


def test_a_corner_is_the_best_embedding_of_its_class() -> None:
    loss, embeddings = SimplexLoss(4, 3, scale=2.0), simplex_classifier(4)
    expected = math.log(1 + 3 * math.exp(2 * (-1 / 3 - 1)))
    assert loss(embeddings, torch.arange(4)).item() == pytest.approx(expected, abs=1e-12)
