from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn

from dml.runtime.errors import InputError, check_number


def make_loss_schedule(schedule: Mapping[str, Any] | None) -> "LossSchedule | None":
    """Make the callback of ``scheduler.loss``; return None if there is no schedule."""
    if not schedule:
        return None
    if {*schedule} != {"attribute", "start", "end"}:
        raise InputError(f"scheduler.loss={{{', '.join(map(str, schedule))}}}: takes attribute, start, end")
    return LossSchedule(**schedule)


class LossSchedule(Callback):
    """Changes an attribute of the losses linearly over the run, such as the dynamic temperature of RLL (Eq. 15).

    At step t of n the value is ``start - t (start - end) / n``, so a resumed run needs no state. An attribute of a term
    of the loss is named like "terms.rll.negative_temperature".
    """

    def __init__(self, attribute: str, start: float, end: float) -> None:
        for name, value in (("start", start), ("end", end)):
            check_number(f"scheduler.loss.{name}", value)
        if not isinstance(attribute, str):
            raise InputError(f"scheduler.loss.attribute={attribute}: must be the name of a number of the loss")
        self.attribute, self.start, self.end = attribute, start, end

    def check_losses(self, losses: Iterable[nn.Module]) -> None:
        """Check that losses have the attribute, and that it is a number."""
        for loss in losses:
            try:
                value = attrgetter(self.attribute)(loss)
            except AttributeError as error:
                raise InputError(
                    f"scheduler.loss.attribute={self.attribute}: {type(loss).__name__} has none; "
                    f"its numbers are {', '.join(_list_numbers(loss))}"
                ) from error
            if not isinstance(value, float | int) or isinstance(value, bool):
                raise InputError(f"scheduler.loss.attribute={self.attribute}: is {value!r}, not a number")

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
        names = sorted(name for name in {*vars(part), *vars(type(part))} if name[0] != "_")
        numbers += [f"{path}.{name}".lstrip(".") for name in names if isinstance(getattr(part, name), float)]
    return numbers
