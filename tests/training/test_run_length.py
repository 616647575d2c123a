"""Epochs in steps: 30 batches an epoch, and 1, 2 or 4 batches a step."""

from typing import Any

import pytest

from dml.runtime.errors import InputError
from dml.training.trainer_arguments import AUTO, count_steps

TRAINER = {"max_epochs": None, "max_steps": None, "accumulate_grad_batches": 1, "val_check_interval": None}
SCHEDULER: dict[str, Any] = {"warmup_steps": 0, "warmup_epochs": None}


@pytest.mark.parametrize(
    ("trainer", "scheduler", "expected"),
    [
        ({"max_steps": 70}, {}, (70, None, 0)),
        ({"max_epochs": 3}, {}, (90, None, 0)),
        ({"max_epochs": 3, "accumulate_grad_batches": 2}, {"warmup_epochs": 2}, (45, None, 30)),
        ({"max_epochs": 1, "accumulate_grad_batches": 4}, {"warmup_epochs": 1}, (8, None, 7)),  # whole steps
        ({"max_steps": 70, "val_check_interval": 20}, {"warmup_steps": 5}, (70, 20, 5)),
        ({"max_steps": 70, "check_val_every_n_epoch": 2, "accumulate_grad_batches": 2}, {}, (70, 30, 0)),
        ({"max_steps": AUTO}, {}, (400, None, 0)),
        ({"max_steps": 10_000, "val_check_interval": AUTO}, {}, (10_000, 100, 0)),
        ({"max_steps": 200, "val_check_interval": AUTO, "accumulate_grad_batches": 4}, {}, (200, 100, 0)),
    ],
)
def test_lengths_in_steps(trainer: dict[str, Any], scheduler: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert tuple(count_steps(TRAINER | trainer, SCHEDULER | scheduler, 30)) == expected


def test_large_data_sets_take_their_epochs() -> None:
    for steps, length in ((AUTO, (4000, 500)), (1000, (1000, 250))):
        trainer = TRAINER | {"max_steps": steps, "val_check_interval": AUTO}
        assert tuple(count_steps(trainer, SCHEDULER, 500))[:2] == length


@pytest.mark.parametrize(
    ("trainer", "scheduler", "key"),
    [
        ({"max_steps": 5, "max_epochs": 1}, {}, "trainer.max_steps"),
        ({}, {}, "trainer.max_steps"),
        ({"max_steps": 5, "val_check_interval": 0}, {}, "trainer.val_check_interval"),
        ({"max_steps": 5}, {"warmup_steps": 1, "warmup_epochs": 1}, "scheduler.warmup_epochs"),
    ],
)
def test_no_or_two_lengths_are_refused(trainer: dict[str, Any], scheduler: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=f"^{key}="):
        count_steps(TRAINER | trainer, SCHEDULER | scheduler, 30)
