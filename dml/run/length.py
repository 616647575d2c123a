"""How long a run and its schedule are: epochs become steps, which is all that the training loop counts."""

from math import ceil

from omegaconf import DictConfig, OmegaConf, open_dict

from dml.ops.errors import InputError
from dml.training.schedules import SchedulePace


def count_in_steps(config: DictConfig, batches_per_epoch: int) -> None:
    """Turns epochs into steps, which is all that the training loop counts.

    Raises:
        InputError: if no length is given, or two; or if the warm-up's is given twice.
    """
    trainer, scheduler = config.trainer, config.scheduler
    epochs, steps = trainer.max_epochs, trainer.max_steps
    if epochs is not None and steps is not None:
        raise InputError(
            f"trainer.max_steps={steps} and trainer.max_epochs={epochs}: a run has one length; set the other to null"
        )
    if (warmup_epochs := scheduler.get("warmup_epochs")) is not None:
        if scheduler.warmup_steps:
            raise InputError(
                f"scheduler.warmup_epochs={warmup_epochs} and scheduler.warmup_steps={scheduler.warmup_steps}: "
                "only one of them may be given"
            )
        scheduler.warmup_steps = warmup_epochs * batches_per_epoch // trainer.accumulate_grad_batches
        scheduler.warmup_epochs = None
    with open_dict(trainer):
        every = trainer.pop("check_val_every_n_epoch")
        trainer.max_epochs = None
        # an epoch that ends within a step ends with it
        trainer.max_steps = ceil(epochs * batches_per_epoch / trainer.accumulate_grad_batches) if epochs else steps
        if every is not None:
            trainer.val_check_interval = ceil(every * batches_per_epoch / trainer.accumulate_grad_batches)
    if trainer.max_steps is None or trainer.max_steps < 1:
        raise InputError(f"trainer.max_steps={trainer.max_steps}: a number of steps, or trainer.max_epochs")
    interval = trainer.val_check_interval
    if interval is not None and not (isinstance(interval, int) and interval >= 1):
        raise InputError(f"trainer.val_check_interval={interval}: a whole number of steps, or null")


def pace(config: DictConfig, batches_per_epoch: int) -> SchedulePace:
    """What counts the intervals of ``scheduler``.

    Raises:
        InputError: if ``scheduler.interval`` is neither step nor epoch.
    """
    return SchedulePace(
        config.scheduler.interval,
        config.scheduler.warmup_steps,
        batches_per_step=config.trainer.accumulate_grad_batches,
        batches_per_epoch=batches_per_epoch,
    )


def schedule(config: DictConfig, intervals: SchedulePace) -> DictConfig | None:
    """``scheduler.schedule``, each ``???`` in it replaced by the number of intervals from the warm-up to the run's end.

    Raises:
        InputError: if the warm-up leaves none.
    """
    if config.scheduler.schedule is None:
        return None
    filled: DictConfig = config.scheduler.schedule.copy()
    for key in filled:
        if OmegaConf.is_missing(filled, key):
            filled[key] = intervals.length(config.trainer.max_steps)
    return filled


def late_milestones(config: DictConfig, batches_per_epoch: int) -> str:
    """One line about a step of the schedule that the run ends before; empty if there is none."""
    schedule = config.scheduler.schedule or {}
    last = pace(config, batches_per_epoch).ended(config.trainer.max_steps - 1)
    for key in schedule.keys() & {"milestones", "step_size"}:
        numbers = schedule[key] if key == "milestones" else [schedule[key]]
        if late := [number for number in numbers if number > last]:
            return (
                f"scheduler.schedule.{key}={schedule[key]}: the run ends before {config.scheduler.interval} {min(late)}"
            )
    return ""
