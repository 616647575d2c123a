"""Trainers for tests of what happens in a step."""

from typing import Any

from pytorch_lightning import Trainer

from dml.commands.start import quiet


def small_trainer(steps: int, **settings: Any) -> Trainer:
    """So many steps of one endless epoch on the CPU, silently, without validation and checkpoints unless told so."""
    quiet()
    plain = {"devices": 1, "enable_checkpointing": False, "limit_val_batches": 0, "logger": False}
    plain |= {"enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        **(plain | settings),
    )
