"""The arguments of Lightning's Trainer: those that dml sets itself, and the lengths, which it counts in steps."""

import re
from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from dml.runtime.errors import InputError, check_number, check_whole

if TYPE_CHECKING:  # it imports torch, and the command line needs this module before its first line
    from dml.training.optimizers import SchedulePace

REFUSED_ARGUMENTS = {
    "barebones": "checkpoints.every_n_steps, trainer.log_every_n_steps and evaluation.raw=false save time",
    "default_root_dir": "hydra.run.dir=FOLDER is where a run is written",
    "enable_autolog_hparams": "the run folder holds the whole configuration",
    "enable_checkpointing": "checkpoints.* says when checkpoints are written; a run always has its last",
    "fast_dev_run": "trainer.max_steps=2 trainer.val_check_interval=1 tries a run out",
    "limit_predict_batches": "nothing is predicted; trainer.limit_test_batches shortens the test",
    "limit_train_batches": "trainer.max_steps or trainer.max_epochs ends a run",
    "logger": "logger=csv, tensorboard or wandb chooses the loggers",
    "min_epochs": "trainer.min_steps counts in steps, as the training loop does",
    "model_registry": "checkpoints.* says which checkpoints a run folder holds",
    "num_sanity_val_steps": "evaluation.raw=true tests the backbone before training",
    "overfit_batches": "a data set of a few images does that, such as dataset=folder dataset.root=FOLDER",
    "reload_dataloaders_every_n_epochs": "training.bank_every_n_steps is when a sampler learns from new embeddings",
    "use_distributed_sampler": "each process gets its share of every batch anyway",
}
"""For each argument that dml sets itself, what to use instead of it."""

LEAST = {"log_every_n_steps": 1, "accumulate_grad_batches": 1, "gradient_clip_val": 0, "min_steps": 0}
"""The least values of arguments; with smaller ones, which Lightning takes, nothing would happen or the run fail."""

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


def explain_refusal(argument: str) -> str | None:
    """Return the error line of an argument that dml sets itself; None for any other argument."""
    if argument not in REFUSED_ARGUMENTS:
        return None
    return f"trainer.{argument}: dml sets it itself; {REFUSED_ARGUMENTS[argument]}"


def check_arguments(arguments: Mapping[Any, Any]) -> None:
    """Refuse the arguments that dml sets itself, and numbers with which nothing would happen."""
    for argument in arguments:
        if line := explain_refusal(argument):
            raise InputError(line)
    for name, least in LEAST.items():
        if arguments.get(name) is not None:
            check_number(f"trainer.{name}", arguments[name], least)
    time = arguments.get("max_time")
    if isinstance(time, int | str) and not re.fullmatch(r"(?!0+:00:00:00)\d+:\d\d:\d\d:\d\d", str(time).strip()):
        raise InputError(f"trainer.max_time={time}: must be days:hours:minutes:seconds, such as 00:08:00:00")
    if arguments.get("limit_test_batches") is not None:  # a run ends with a test
        check_number("trainer.limit_test_batches", arguments["limit_test_batches"], above=0)


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
    check_whole("trainer.max_steps", steps, 1)
    interval = trainer["val_check_interval"]
    if (epochs_between := trainer.get("check_val_every_n_epoch")) is not None:
        interval = steps_of(epochs_between)
    elif interval == AUTO:
        interval = max(FEWEST_STEPS_BETWEEN, min(steps_of(1), steps // FEWEST_VALIDATIONS))
    if interval is not None:
        check_whole("trainer.val_check_interval", interval, 1)
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
