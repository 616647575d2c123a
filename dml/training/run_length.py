"""The lengths of a run in optimizer steps; the training loop counts nothing else."""

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from dml.runtime.errors import InputError

if TYPE_CHECKING:  # it imports torch, and the command line needs this module before its first line
    from dml.training.optimizers import SchedulePace

AUTO = "auto"
"""The value of a length that follows the size of the data set."""
COUNTED = ("max_steps", "val_check_interval")
"""The arguments of the Trainer that may be `AUTO`."""
AUTO_EPOCHS = 8
"""The epochs of a run whose length is `AUTO`."""
FEWEST_STEPS = 400
"""The fewest optimizer steps of such a run: eight epochs of a small data set are too few steps to learn from."""
FEWEST_STEPS_BETWEEN, FEWEST_VALIDATIONS = 100, 4
"""Validations whose interval is `AUTO` are an epoch apart, or less for so many of them, but at least so many steps."""


class RunLength(NamedTuple):
    """The lengths of a run, of the interval between two validations, if any, and of the warm-up in optimizer steps."""

    max_steps: int
    val_check_interval: int | None
    warmup_steps: int


def count_steps(trainer: Mapping[str, Any], scheduler: Mapping[str, Any], batches_per_epoch: int) -> RunLength:
    """Turn epochs into steps; a run or a warm-up that has no length or two raises InputError."""
    epochs, steps, batches_per_step = trainer["max_epochs"], trainer["max_steps"], trainer["accumulate_grad_batches"]
    if epochs is not None and steps is not None:
        raise InputError(
            f"trainer.max_steps={steps} and trainer.max_epochs={epochs}: a run has one length; set the other to null"
        )

    def steps_of(number: int) -> int:
        """Return the steps of a number of epochs, which end with a whole step."""
        total: int = ceil(number * batches_per_epoch / batches_per_step)
        return total

    if epochs:
        steps = steps_of(epochs)
    elif steps == AUTO:
        steps = max(FEWEST_STEPS, steps_of(AUTO_EPOCHS))
    if not (isinstance(steps, int) and steps >= 1):
        raise InputError(f"trainer.max_steps={steps}: a number of steps, or {AUTO}, or trainer.max_epochs")
    interval = trainer["val_check_interval"]
    if (epochs_between := trainer.get("check_val_every_n_epoch")) is not None:
        interval = steps_of(epochs_between)
    elif interval == AUTO:
        interval = max(FEWEST_STEPS_BETWEEN, min(steps_of(1), steps // FEWEST_VALIDATIONS))
    if interval is not None and not (isinstance(interval, int) and interval >= 1):
        raise InputError(f"trainer.val_check_interval={interval}: a whole number of steps, {AUTO}, or null")
    return RunLength(steps, interval, _count_warmup_steps(scheduler, batches_per_epoch, batches_per_step))


def _count_warmup_steps(scheduler: Mapping[str, Any], batches_per_epoch: int, batches_per_step: int) -> int:
    warmup_steps: int = scheduler["warmup_steps"]
    if (warmup_epochs := scheduler.get("warmup_epochs")) is None:
        return warmup_steps
    if warmup_steps:
        raise InputError(
            f"scheduler.warmup_epochs={warmup_epochs} and scheduler.warmup_steps={warmup_steps}: "
            "only one of them may be given"
        )
    return int(warmup_epochs * batches_per_epoch // batches_per_step)


def describe_late_milestones(schedule: Mapping[str, Any], pace: "SchedulePace", max_steps: int) -> str:
    """Return a line about a step of the schedule that the run ends before; "" if there is none."""
    last = pace.count_intervals(max_steps - 1)
    for key in schedule.keys() & {"milestones", "step_size"}:
        numbers = schedule[key] if key == "milestones" else [schedule[key]]
        if late := [number for number in numbers if number > last]:
            return f"scheduler.schedule.{key}={schedule[key]}: the run ends before {pace.interval} {min(late)}"
    return ""
