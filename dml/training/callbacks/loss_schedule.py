from collections.abc import Iterable
from numbers import Real
from operator import attrgetter
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn

from dml.runtime.errors import InputError


class LossSchedule(Callback):
    """Changes an attribute of the losses linearly over the run, such as the dynamic temperature of RLL (Eq. 15).

    At step t of n the value is ``start - t (start - end) / n``, so a resumed run needs no state. An attribute of a term
    of the loss is named like "terms.rll.negative_temperature".
    """

    def __init__(self, attribute: str, start: float, end: float) -> None:
        self.attribute, self.start, self.end = attribute, start, end

    def check_losses(self, losses: Iterable[nn.Module]) -> None:
        """Check that losses have the attribute, and that it is a number."""
        for loss in losses:
            numbers = _list_numbers(loss)
            if self.attribute not in numbers:
                raise InputError(
                    f"scheduler.loss.attribute={self.attribute}: no number of {type(loss).__name__}; its numbers are "
                    f"{', '.join(numbers)}"
                )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Set the value for the step."""
        value = self.start - trainer.global_step * (self.start - self.end) / trainer.max_steps
        owner, name = self.attribute.rpartition(".")[::2]
        for loss in pl_module.losses.values():  # type: ignore[operator]
            setattr(attrgetter(owner)(loss) if owner else loss, name, value)


def _list_numbers(loss: nn.Module) -> list[str]:
    """List the paths of the attributes and properties of a loss, and of its parts, that are numbers."""
    numbers = []
    for path, part in loss.named_modules():
        for name in sorted({*vars(part), *vars(type(part))}):
            value = getattr(part, name, None)
            if name[0] != "_" and isinstance(value, Real) and not isinstance(value, bool):
                numbers.append(f"{path}.{name}".lstrip("."))
    return numbers
