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

LEAST = {"log_every_n_steps": 1, "accumulate_grad_batches": 1, "gradient_clip_val": 0, "min_steps": 0}
"""The least values of arguments; with smaller ones, which Lightning takes, nothing would happen or the run fail."""


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
        value = arguments.get(name)
        if isinstance(value, int | float) and not value >= least:
            raise InputError(f"trainer.{name}={value}: must be {least} or more")
    if arguments.get("limit_test_batches") == 0:
        raise InputError("trainer.limit_test_batches=0: a run ends with a test; 1 is its first batch alone")
    devices, time = arguments.get("devices"), arguments.get("max_time")
    if isinstance(devices, int) and devices < 1 and devices != -1:
        raise InputError(f"trainer.devices={devices}: at least 1, or auto for all GPUs")
    if isinstance(time, int | float | str) and not re.fullmatch(
        r"(?!0+:00:00:00)\d+:\d\d:\d\d:\d\d", str(time).strip()
    ):
        raise InputError(
            f"trainer.max_time={time}: must be days:hours:minutes:seconds, such as 00:08:00:00 for 8 hours, or null"
        )
