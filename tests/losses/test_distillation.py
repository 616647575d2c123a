"""The losses of a teacher against loops in float64, and the values that follow from their formulas."""

import math
from collections.abc import Callable
from itertools import permutations, product

import pytest
import torch
from torch import Tensor, nn

from dml.losses import distillation
from dml.losses.compose import WeightedSum
from dml.losses.distillation import (
    EmbeddingDistillationLoss,
    RelationalAngleLoss,
    RelationalDistanceLoss,
    SimilarityDistillationLoss,
    TeacherLoss,
    find_wanted_vectors,
)
from dml.losses.loss_contract import loss_value

RELATIONS = [SimilarityDistillationLoss, RelationalDistanceLoss, RelationalAngleLoss]


def rows(*values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def draw(count: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TEACHER, STUDENT = rows((0, 0), (3, 0), (0, 4)), rows((0, 0), (1, 0), (0, 1))


def huber(gap: float) -> float:
    return gap**2 / 2 if abs(gap) < 1 else abs(gap) - 0.5


def loop_similarity(student: Tensor, teacher: Tensor) -> float:
    def cosine(x: Tensor, i: int, j: int) -> float:
        return float(x[i] @ x[j] / (x[i].norm() * x[j].norm()))

    pairs = [*product(range(len(student)), repeat=2)]
    return sum((cosine(student, i, j) - cosine(teacher, i, j)) ** 2 for i, j in pairs) / len(pairs)


def loop_distance(student: Tensor, teacher: Tensor) -> float:
    pairs = [*permutations(range(len(student)), 2)]
    lists = [[float((x[i] - x[j]).norm()) for i, j in pairs] for x in (student, teacher)]
    means = [sum(distances) / len(pairs) for distances in lists]
    return sum(huber(s / means[0] - t / means[1]) for s, t in zip(*lists, strict=True)) / len(pairs)


def loop_angle(student: Tensor, teacher: Tensor) -> float:
    def cosine(x: Tensor, i: int, j: int, k: int) -> float:
        first, second = x[i] - x[j], x[k] - x[j]
        return float(first @ second / (first.norm() * second.norm()))

    triplets = [*permutations(range(len(student)), 3)]
    return sum(huber(cosine(student, *each) - cosine(teacher, *each)) for each in triplets) / len(triplets)


@pytest.mark.parametrize(
    ("loss", "student", "teacher", "expected"),
    [
        (SimilarityDistillationLoss(), torch.eye(3).double(), rows((1, 0), (0.6, 0.8), (0, 1)), 0.2222222222),
        (RelationalDistanceLoss(), STUDENT, TEACHER, 0.0052218732),
        (RelationalAngleLoss(), STUDENT, TEACHER, 0.0033501688),
        (EmbeddingDistillationLoss(2, 2), rows((0.6, 0.8)), rows((1, 0)), 0.4),
    ],
)
def test_worked_values(loss: nn.Module, student: Tensor, teacher: Tensor, expected: float) -> None:
    assert loss(student, teacher).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("kind", "loop"), [*zip(RELATIONS, [loop_similarity, loop_distance, loop_angle], strict=True)])
@pytest.mark.parametrize("largest_part", [2**24, 40])
def test_a_loop_gives_the_same(
    kind: Callable[[], nn.Module],
    loop: Callable[[Tensor, Tensor], float],
    largest_part: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distillation, "LARGEST_PART", largest_part)
    student, teacher = draw(6, 3), draw(6, 5, seed=1)
    assert kind()(student, teacher).item() == pytest.approx(loop(student, teacher), abs=1e-12)
    assert torch.autograd.gradcheck(kind(), (student.requires_grad_(), teacher))


@pytest.mark.parametrize("kind", RELATIONS)
def test_a_rotated_student_has_learned_all(kind: Callable[[], nn.Module]) -> None:
    teacher = draw(7, 4)
    rotation = torch.linalg.qr(draw(4, 4, seed=1))[0]
    scale = 1.0 if kind is SimilarityDistillationLoss else 7.0
    assert kind()(scale * teacher @ rotation, teacher).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", [*RELATIONS, lambda: EmbeddingDistillationLoss(4, 5)])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_values_and_gradients_are_finite(kind: Callable[[], nn.Module], scale: float, count: int) -> None:
    """Also for equal embeddings, of which the last two are two, and for a batch of one image."""
    student, teacher = scale * draw(count, 4).float(), draw(count, 5, seed=1).float()
    student[-1], teacher[-1] = student[0], teacher[0]
    student.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = kind()(student, teacher)
    value.backward()
    assert value.isfinite()
    assert student.grad is not None
    assert student.grad.isfinite().all()


def test_another_size_has_a_map_that_learns_and_is_stored() -> None:
    loss = EmbeddingDistillationLoss(3, 5)
    student, teacher = draw(4, 3).float(), draw(4, 5, seed=1).float()
    assert [*loss.state_dict()] == ["map.weight"]
    mapped = (student @ loss.map.weight.T).detach()  # type: ignore[union-attr]
    expected = 1 - sum(float(s @ t / (s.norm() * t.norm())) for s, t in zip(mapped, teacher, strict=True)) / 4
    assert loss(student, teacher).item() == pytest.approx(expected, abs=1e-6)
    assert EmbeddingDistillationLoss(3, 3).state_dict() == {}


def test_rows_of_the_training_table_choose_the_vectors() -> None:
    vectors = rows((3, 0), (0, 2), (-5, 0))
    term = TeacherLoss(EmbeddingDistillationLoss(2, 2), vectors)
    loss = WeightedSum({"teacher": term}, {"teacher": 2.0})
    embeddings, labels = rows((0, 9), (-1, 1)), torch.tensor([0, 1])
    expected = 2 * ((1 - 1) + (1 - 1 / math.sqrt(2))) / 2
    found = loss_value(loss, embeddings, labels, indices=torch.tensor([1, 2]))
    assert found.item() == pytest.approx(expected, abs=1e-12)
    assert loss.state_dict() == {}
    wanted = find_wanted_vectors(loss)
    assert wanted is not None
    torch.testing.assert_close(wanted, rows((1, 0), (0, 1), (-1, 0)))
    assert find_wanted_vectors(TeacherLoss(EmbeddingDistillationLoss(2, 3), vectors)) is None  # a map stands between
    assert find_wanted_vectors(TeacherLoss(RelationalDistanceLoss(), vectors)) is None


def test_lengths_dont_count_in_a_search() -> None:
    vectors, embeddings = draw(4, 3), draw(4, 2, seed=1)
    terms = [TeacherLoss(RelationalDistanceLoss(), scale * vectors) for scale in (1.0, 3.0)]
    lengths = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    values = [
        term(scaled, torch.zeros(4), indices=torch.arange(4))
        for term, scaled in zip(terms, (embeddings, lengths * embeddings), strict=True)
    ]
    torch.testing.assert_close(values[0], values[1])
