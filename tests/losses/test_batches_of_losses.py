"""What a loss is given that can't be a batch, and numbers that would make it a constant: one line each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from every_loss import LABELS, LOSSES, batch, build

from dml.losses import (
    CalibrationLoss,
    ClusterLoss,
    CSLLoss,
    NonlinearRankApproximationLoss,
    NPairLoss,
    RankedListLoss,
    RecallAtKLoss,
    SmoothAPLoss,
    SmoothHierarchicalAPLoss,
    SoftmaxLoss,
    TripletSemihardLoss,
)
from dml.runtime.errors import InputError

X, Y = batch(), LABELS
SIZE = X.shape[1]


NO_BATCHES: list[tuple[Any, Any, str]] = [
    (X.tolist(), Y, r"for list embeddings of shape \(15, 8\): must be .* as tensors$"),
    (X.numpy(), Y, "for ndarray embeddings of shape"),
    (X, Y.numpy(), r"^ndarray labels of shape \(15, 2\)"),
    (X, ["a"] * len(X), r"^list labels of shape \(15,\)"),
    (X[:, 0], Y, r"for torch.float32 embeddings of shape \(15,\): must be"),
    (X.long(), Y, r"for torch.int64 embeddings of shape .* floats"),
    (X, F.one_hot(Y[:, 0]), r"^labels \(15, 5\) are one-hot rows: labels\.argmax\(dim=1\) gives their classes$"),
]


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_no_batch_is_refused(name: str) -> None:
    loss = build(name)
    for embeddings, labels, line in NO_BATCHES:
        with pytest.raises(InputError, match=line):
            loss(embeddings, labels)


@pytest.mark.parametrize("shift", [-1, 1, -100, 100])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ClusterLoss(5, SIZE),
        lambda: CSLLoss(5, SIZE),
        lambda: SoftmaxLoss(5, SIZE),
        lambda: build("proxy_anchor"),
        lambda: build("cluster"),
    ],
)
def test_labels_that_are_no_classes_are_refused(make: Callable[[], Any], shift: int) -> None:
    loss = make()
    loss(embeddings=X, labels=Y)
    with pytest.raises(InputError, match=rf"^labels from {shift} to {4 + shift}: .* has classes from 0 to 4 \(num_"):
        loss(X, Y + shift)


def test_labels_of_a_loss_of_pairs_may_be_any_whole_numbers() -> None:
    assert RankedListLoss()(X, 1000 * Y - 7) == RankedListLoss()(X, Y)


def test_levels_of_images_of_one_class_are_no_one_hot_rows() -> None:
    RankedListLoss()(X, torch.tensor([[1, 0, 0]]).expand(len(X), -1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RankedListLoss(margin=-3),
        lambda: RankedListLoss(margin=float("nan")),
        lambda: RankedListLoss(alpha=0),
        lambda: TripletSemihardLoss(margin=-1),
        lambda: CSLLoss(3, 4, margins=[-3]),
        lambda: CSLLoss(3, 4, scale=0),
        lambda: NonlinearRankApproximationLoss(alpha=float("nan")),
        lambda: SmoothAPLoss(temperature=float("nan")),
        lambda: SmoothHierarchicalAPLoss(tau=0),
        lambda: SmoothHierarchicalAPLoss(rho=-1),
        lambda: CalibrationLoss(negative_bound=3),
        lambda: RankedListLoss(negative_weight=1.5),
        lambda: RankedListLoss(negative_temperature=float("inf")),
        lambda: RankedListLoss(positive_temperature=float("nan")),
        lambda: CSLLoss(3, 4, margins=["a"]),  # type: ignore[list-item]
        lambda: ClusterLoss(3, 2, 0.0),
        lambda: ClusterLoss(3, 2, -0.05),
        lambda: SmoothHierarchicalAPLoss(delta=-0.1),
        lambda: NonlinearRankApproximationLoss(alpha=0.0),
        lambda: NonlinearRankApproximationLoss(epsilon=0.0),
        lambda: SmoothAPLoss(0.0),
        lambda: NPairLoss("mc"),  # type: ignore[arg-type]
        lambda: RecallAtKLoss(()),
        lambda: RecallAtKLoss((1, 0)),
        lambda: RecallAtKLoss(("a",)),
        lambda: RecallAtKLoss((1.5,)),
        lambda: RecallAtKLoss(temperature=0.0),
        lambda: RecallAtKLoss(recall_temperature=-1.0),
    ],
)
def test_numbers_that_leave_a_loss_without_a_meaning_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=r"^loss\.\w+=.+: .*must be "):
        make()


@pytest.mark.pipeline
def test_a_loss_compiles() -> None:
    compiled = torch.compile(build("rll"), backend="eager")
    torch.testing.assert_close(compiled(X, Y), build("rll")(X, Y))
