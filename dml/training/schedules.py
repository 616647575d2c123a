import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dml.ops.errors import InputError


@dataclass(frozen=True)
class SchedulePace:
    """Counts the intervals after each of which the schedule of the learning rates moves; the warm-up has none.

    Args:
        interval: length of an interval: "step", an optimizer step, or "epoch", an epoch of the sampler. Both are
            counted from the end of the warm-up.
        warmup_steps: number of optimizer steps at the beginning of the run that the schedule doesn't count.
        batches_per_step: number of batches whose gradients make one optimizer step.
        batches_per_epoch: number of batches in the sampler's epoch.

    Raises:
        InputError: if the interval is neither "step" nor "epoch".
    """

    interval: str = "step"
    warmup_steps: int = 0
    batches_per_step: int = 1
    batches_per_epoch: int = 1

    def __post_init__(self) -> None:
        if self.interval not in ("step", "epoch"):
            raise InputError(f"scheduler.interval={self.interval}: step or epoch")

    def count_intervals(self, step: int) -> int:
        """Count the intervals that have ended after ``step`` optimizer steps of the run."""
        steps = max(0, step - self.warmup_steps)
        return steps if self.interval == "step" else self.count_epochs(steps)

    def count_epochs(self, step: int) -> int:
        """Count the sampler's epochs that have ended after ``step`` optimizer steps."""
        return step * self.batches_per_step // self.batches_per_epoch

    def schedule_length(self, max_steps: int) -> int:
        """Return the number of intervals of a schedule that ends with a run of ``max_steps`` optimizer steps.

        Raises:
            InputError: if the warm-up takes the whole run.
        """
        if max_steps <= self.warmup_steps:
            raise InputError(
                f"scheduler.warmup_steps={self.warmup_steps}: leaves nothing of the run's {max_steps} steps for the "
                "schedule; scheduler=constant has none"
            )
        return self.count_intervals(max_steps - 1) + 1


def rebuild_schedule(make: Callable[[Optimizer], LRScheduler], optimizer: Optimizer, intervals: int) -> LRScheduler:
    """Make a new schedule in place of an earlier one, and move it and the optimizer's learning rates forward.

    Args:
        make: function that makes the schedule from the optimizer.
        optimizer: optimizer that has had a schedule before, so that its parameter groups have an ``initial_lr``.
        intervals: number of intervals that have ended.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"]
    schedule = make(optimizer)
    with warnings.catch_warnings():  # PyTorch warns that the optimizer took no step: an earlier process took them.
        warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step")
        for _ in range(intervals):
            schedule.step()
    return schedule
