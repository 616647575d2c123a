import math
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import draw_embeddings, published_cases
from torch import Tensor

from dml.losses.hyperbolic import HyperbolicContrastiveLoss, poincare_distances, to_ball
from dml.ops.poincare import euclidean_distances
from dml.runtime.errors import InputError

SETTINGS = [(0.2, 0.1, 2.3), (0.1, 0.0, 2.3), (0.3, 1.0, 1.0)]


def moebius_distance(x: Tensor, y: Tensor, c: float) -> float:
    """Eq. 1 and 2: 2 / sqrt(c) artanh(sqrt(c) |-x (+) y|)."""
    inner, x2, y2 = float(-x @ y), float(x @ x), float(y @ y)
    added = ((1 + 2 * c * inner + c * y2) * -x + (1 - c * x2) * y) / (1 + 2 * c * inner + c**2 * x2 * y2)
    return 2 / math.sqrt(c) * math.atanh(math.sqrt(c) * float(added.norm()))


def by_hand(embeddings: Tensor, labels: list[int], temperature: float, curvature: float, clip: float) -> float:
    """A class, an ordered pair of its images and another class at a time."""
    points = to_ball(embeddings, curvature, clip)

    def similarity(i: int, j: int) -> float:
        cosine_or_distance = float(points[i] @ points[j]) if not curvature else 0.0
        return (
            cosine_or_distance if not curvature else -moebius_distance(points[i], points[j], curvature)
        ) / temperature

    members = [[i for i, label in enumerate(labels) if label == name] for name in sorted(set(labels))]
    total = 0.0
    for images in members:
        for a, query in enumerate(images):
            for b, positive in enumerate(images):
                if a == b:
                    continue
                others = [other for other in members if other is not images]
                candidates = [positive, *(other[place] for other in others for place in (a, b) if place < len(other))]
                exponentials = [math.exp(similarity(query, j)) for j in candidates]
                total -= math.log(exponentials[0] / sum(exponentials))
    return total / len(members)


@pytest.mark.parametrize(("batch", "expected"), published_cases("modern", "hyperbolic_contrastive"))
def test_equals_the_published_vectors(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    embeddings = torch.tensor(batch["embeddings"], dtype=torch.float64)
    value = HyperbolicContrastiveLoss(**expected["params"])(embeddings, torch.tensor(batch["labels"]))
    assert value.item() == pytest.approx(expected["value"], abs=1e-9)


@pytest.mark.parametrize(("batch", "expected"), published_cases("modern", "poincare_distances"))
def test_distances_equal_the_published_vectors(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    points = torch.tensor(expected["points"], dtype=torch.float64)
    distances = torch.tensor(expected["distances"], dtype=torch.float64)
    embeddings = torch.tensor(batch["embeddings"], dtype=torch.float64)[: len(points)]
    torch.testing.assert_close(to_ball(embeddings, 0.1, 2.3), points, atol=1e-12, rtol=0)
    torch.testing.assert_close(poincare_distances(points, points, 0.1), distances, atol=1e-9, rtol=0)


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=10),
    seed=st.integers(0, 1000),
    setting=st.sampled_from(SETTINGS),
)
@examples(40)
def test_equals_a_loop_over_classes(labels: list[int], seed: int, setting: tuple[float, float, float]) -> None:
    embeddings = draw_embeddings(len(labels), 5, seed)
    value = HyperbolicContrastiveLoss(*setting)(embeddings, torch.tensor(labels))
    assert value.item() == pytest.approx(by_hand(embeddings, labels, *setting), abs=1e-9)


@pytest.mark.parametrize("setting", SETTINGS)
def test_gradcheck(setting: tuple[float, float, float]) -> None:
    loss, labels = HyperbolicContrastiveLoss(*setting), torch.tensor([0, 0, 1, 1, 1, 2, 0])
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), draw_embeddings(7, 5).requires_grad_())


def test_the_map_into_the_ball_follows_its_formula() -> None:
    embeddings = 2.0 * draw_embeddings(20, 5)
    for curvature, clip in ((0.1, 2.3), (1.0, 1.0), (2.0, 0.3)):
        for x, point in zip(embeddings, to_ball(embeddings, curvature, clip), strict=True):
            clipped = x * min(1.0, clip / (float(x.norm()) + 1e-5))
            length = math.sqrt(curvature) * float(clipped.norm())
            torch.testing.assert_close(point, math.tanh(length) * clipped / length)
    torch.testing.assert_close(to_ball(embeddings, 0.0, 2.3), embeddings / embeddings.norm(dim=1, keepdim=True))


def test_points_stay_inside_the_ball() -> None:
    points = to_ball((1e6 * draw_embeddings(10, 5)).float(), curvature=4.0, clip=1e6)
    torch.testing.assert_close(points.norm(dim=1), torch.full((10,), 0.999 / 2))
    assert poincare_distances(points, points, 4.0).isfinite().all()


def test_zero_embeddings_have_a_finite_gradient() -> None:
    embeddings = torch.zeros(4, 3, requires_grad=True)
    HyperbolicContrastiveLoss()(embeddings, torch.tensor([0, 0, 1, 1])).backward()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_points_of_half_precision_embeddings_are_inside_the_ball(dtype: torch.dtype) -> None:
    points = to_ball((20 * draw_embeddings(200, 5)).to(dtype), 1.0, 50.0)
    assert points.norm(dim=1).max() < 0.9991
    assert poincare_distances(points, points, 1.0).isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, r"loss\.temperature=0\.0"),
        ({"curvature": -0.1}, r"loss\.curvature=-0\.1"),
        ({"clip": 0.0}, r"loss\.clip=0\.0"),
    ],
)
def test_refuses_values_that_make_no_sense(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        HyperbolicContrastiveLoss(**arguments)


def test_distances_need_a_ball() -> None:
    with pytest.raises(InputError, match="curvature=0"):
        poincare_distances(draw_embeddings(2, 5), draw_embeddings(2, 5), 0.0)


@pytest.mark.parametrize("block", [1, 300, 10**6])
def test_distances_by_blocks_of_points_are_the_same(block: int) -> None:
    """On a GPU a block bounds the memory of the backward pass."""
    points, items = draw_embeddings(9, 5).requires_grad_(), draw_embeddings(11, 5, seed=1).requires_grad_()
    outer = draw_embeddings(9, 11, seed=2)
    found = []
    for size in (None, block):
        distances = euclidean_distances(points, items, size)
        found.append((distances, *torch.autograd.grad(distances, (points, items), outer)))
    for whole, in_blocks in zip(*found, strict=True):
        torch.testing.assert_close(in_blocks, whole, rtol=1e-12, atol=1e-14)
