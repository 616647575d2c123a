from operator import attrgetter
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from dml.ops.errors import InputError


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
