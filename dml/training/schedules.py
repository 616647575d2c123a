import warnings
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dml.ops.errors import InputError


@dataclass(frozen=True)
class SchedulePace:
    """Counts the intervals by which the learning rates' schedule moves; during the warm-up it stands still.

    Args:
        interval: "step", an optimizer step, or "epoch", an epoch of the sampler, counted from the end of the warm-up.
        warmup_steps: number of optimizer steps at the beginning of the run that the schedule doesn't count.
        batches_per_step: number of batches whose gradients make one optimizer step.
        batches_per_epoch: number of batches in the sampler's epoch.

    Raises:
        InputError: if the interval is neither.
    """

    interval: str = "step"
    warmup_steps: int = 0
    batches_per_step: int = 1
    batches_per_epoch: int = 1

    def __post_init__(self) -> None:
        if self.interval not in ("step", "epoch"):
            raise InputError(f"scheduler.interval={self.interval}: step or epoch")

    def ended(self, step: int) -> int:
        """Number of intervals that have ended after ``step`` optimizer steps of the run."""
        steps = max(0, step - self.warmup_steps)
        return steps if self.interval == "step" else self.epoch(steps)

    def epoch(self, step: int) -> int:
        """Number of the sampler's epochs that have ended after ``step`` optimizer steps."""
        return step * self.batches_per_step // self.batches_per_epoch

    def length(self, max_steps: int) -> int:
        """Number of intervals that a run of ``max_steps`` begins: the length of a schedule that ends where it ends.

        Raises:
            InputError: if the warm-up takes the whole run.
        """
        if max_steps <= self.warmup_steps:
            raise InputError(
                f"scheduler.warmup_steps={self.warmup_steps}: leaves nothing of the run's {max_steps} steps for the "
                "schedule; scheduler=constant has none"
            )
        return self.ended(max_steps - 1) + 1


def schedule_after(make: Callable[[Optimizer], LRScheduler], optimizer: Optimizer, intervals: int) -> LRScheduler:
    """Makes a schedule anew and moves it by a number of intervals; the optimizer gets the rates that it then has.

    Args:
        make: makes the schedule from the optimizer.
        optimizer: has had a schedule before: its parameter groups know their ``initial_lr``.
        intervals: how many have ended.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"]
    schedule = make(optimizer)
    with warnings.catch_warnings():  # PyTorch misses the optimizer's steps, which an earlier process took
        warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step")
        for _ in range(intervals):
            schedule.step()
    return schedule


class LossSchedule(Callback):
    """Moves an attribute of the losses linearly over the run: RLL's dynamic temperature (Eq. 15) and its like.

    At step t of n the value is ``start - t (start - end) / n``, whatever it was before: resuming needs no state.

    Args:
        attribute: its name, such as "negative_temperature"; of a part of the loss, "terms.rll.negative_temperature".
        start: value of the first step.
        end: value that the step after the last would have.
    """

    def __init__(self, attribute: str, start: float, end: float) -> None:
        self.attribute = attribute
        self.start = start
        self.end = end

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Checks that the losses have the attribute.

        Raises:
            InputError: if one of them has no such number.
        """
        for loss in self._losses(pl_module):
            try:
                value = attrgetter(self.attribute)(loss)
            except AttributeError as error:
                numbers = sorted(name for name, own in vars(loss).items() if isinstance(own, float))
                raise InputError(
                    f"scheduler.loss.attribute={self.attribute}: {type(loss).__name__} has none; "
                    f"its numbers are {', '.join(numbers)}"
                ) from error
            if not isinstance(value, float | int):
                raise InputError(f"scheduler.loss.attribute={self.attribute}: is {value!r}, not a number")

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Sets the step's value."""
        value = self.start - trainer.global_step * (self.start - self.end) / trainer.max_steps
        owner, _, name = self.attribute.rpartition(".")
        for loss in self._losses(pl_module):
            setattr(attrgetter(owner)(loss) if owner else loss, name, value)

    @staticmethod
    def _losses(pl_module: LightningModule) -> list[Any]:
        losses: Any = pl_module.losses
        return list(losses.values())
