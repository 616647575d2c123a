"""The arguments of Lightning's Trainer that a configuration may not set."""

import re
from collections.abc import Mapping
from typing import Any

from dml.runtime.errors import InputError

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


DURATION = r"\d+:\d\d:\d\d:\d\d"
"""Pattern of a time, as Lightning reads it: days, hours, minutes and seconds."""


def explain_refusal(argument: str) -> str | None:
    """Return the error line of an argument that dml sets itself; None for any other argument."""
    if argument not in REFUSED_ARGUMENTS:
        return None
    return f"trainer.{argument}: dml sets it itself; {REFUSED_ARGUMENTS[argument]}"


def check_arguments(arguments: Mapping[Any, Any]) -> None:
    """Refuse the arguments that dml sets itself, and numbers with which nothing would happen.

    Raises:
        InputError: if one of the arguments is in `REFUSED_ARGUMENTS`, or a number or a time is too small.
    """
    for argument in arguments:
        if line := explain_refusal(argument):
            raise InputError(line)
    if (interval := arguments.get("log_every_n_steps")) is not None and interval < 1:
        raise InputError(
            f"trainer.log_every_n_steps={interval}: at least 1; a number beyond trainer.max_steps logs the last step "
            "alone"
        )
    batches = arguments.get("accumulate_grad_batches", 1)
    if batches is None or batches < 1:
        raise InputError(f"trainer.accumulate_grad_batches={'null' if batches is None else batches}: at least 1")
    if arguments.get("limit_test_batches") == 0:
        raise InputError("trainer.limit_test_batches=0: a run ends with a test; 1 is its first batch alone")
    devices = arguments.get("devices")
    if isinstance(devices, int) and devices < 1 and devices != -1:
        raise InputError(f"trainer.devices={devices}: at least 1, or auto for all GPUs")
    clip = arguments.get("gradient_clip_val")
    if isinstance(clip, int | float) and not clip >= 0:
        raise InputError(f"trainer.gradient_clip_val={clip}: 0 or more, or null for no limit")
    steps = arguments.get("min_steps")
    if isinstance(steps, int) and steps < 0:
        raise InputError(f"trainer.min_steps={steps}: 0 or more, or null")
    _check_time(arguments.get("max_time"))


def _check_time(time: Any) -> None:
    """Refuse a ``max_time`` that Lightning can't read, or at which a training ends at once."""
    example = "such as 00:08:00:00 for 8 hours, or null"
    if isinstance(time, int | float) or (isinstance(time, str) and not re.fullmatch(DURATION, time.strip())):
        raise InputError(f"trainer.max_time={time}: must be days:hours:minutes:seconds, {example}")
    if isinstance(time, str) and not set(time.strip()) - {*"0:"}:
        raise InputError(f"trainer.max_time={time}: longer than nothing, {example}")
