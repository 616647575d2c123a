"""Trainers for tests of what happens in a step."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor

from dml.runtime.imports import quiet


class Falling(LightningModule):
    """A module with one weight, which logs its loss and has the description of a run for checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.run_description: dict[str, Any] = {}
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.weight * batch.mean()
        self.log("loss", loss)
        self.log("batch/first", float(batch_idx))
        self.log("epoch", 7.0)  # the sampler's; to Lightning a run is one
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


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
