"""The lengths of a run in optimizer steps; the training loop counts nothing else."""

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

from dml.ops.errors import InputError
from dml.training.schedules import SchedulePace


class RunLength(NamedTuple):
    """The lengths of a run in optimizer steps.

    Args:
        max_steps: optimizer steps of the run.
        val_check_interval: optimizer steps between two validations; None for no validation.
        warmup_steps: optimizer steps of the warm-up.
    """

    max_steps: int
    val_check_interval: int | None
    warmup_steps: int


def count_steps(trainer: Mapping[str, Any], scheduler: Mapping[str, Any], batches_per_epoch: int) -> RunLength:
    """Turn epochs into steps.

    Args:
        trainer: the values below ``trainer`` in the configuration.
        scheduler: the values below ``scheduler``.
        batches_per_epoch: number of batches in an epoch of the sampler.

    Raises:
        InputError: if the run has no length, if the run or the warm-up has two lengths, or if the interval between
            validations is no whole number of steps.
    """
    epochs, steps, batches_per_step = trainer["max_epochs"], trainer["max_steps"], trainer["accumulate_grad_batches"]
    if epochs is not None and steps is not None:
        raise InputError(
            f"trainer.max_steps={steps} and trainer.max_epochs={epochs}: a run has one length; set the other to null"
        )
    warmup_steps = scheduler["warmup_steps"]
    if (warmup_epochs := scheduler.get("warmup_epochs")) is not None:
        if warmup_steps:
            raise InputError(
                f"scheduler.warmup_epochs={warmup_epochs} and scheduler.warmup_steps={warmup_steps}: "
                "only one of them may be given"
            )
        warmup_steps = warmup_epochs * batches_per_epoch // batches_per_step
    # If an epoch ends between the batches of a step, it ends with the step.
    max_steps = ceil(epochs * batches_per_epoch / batches_per_step) if epochs else steps
    interval, epochs_between = trainer["val_check_interval"], trainer.get("check_val_every_n_epoch")
    if epochs_between is not None:
        interval = ceil(epochs_between * batches_per_epoch / batches_per_step)
    if max_steps is None or max_steps < 1:
        raise InputError(f"trainer.max_steps={max_steps}: a number of steps, or trainer.max_epochs")
    if interval is not None and not (isinstance(interval, int) and interval >= 1):
        raise InputError(f"trainer.val_check_interval={interval}: a whole number of steps, or null")
    return RunLength(max_steps, interval, warmup_steps)


def describe_late_milestones(schedule: Mapping[str, Any], pace: SchedulePace, max_steps: int) -> str:
    """Return a line about a step of the schedule that the run ends before; "" if there is none.

    Args:
        schedule: the values below ``scheduler.schedule`` in the configuration.
        pace: counter of the intervals of the schedule.
        max_steps: optimizer steps of the run.
    """
    last = pace.count_intervals(max_steps - 1)
    for key in schedule.keys() & {"milestones", "step_size"}:
        numbers = schedule[key] if key == "milestones" else [schedule[key]]
        if late := [number for number in numbers if number > last]:
            return f"scheduler.schedule.{key}={schedule[key]}: the run ends before {pace.interval} {min(late)}"
    return ""
