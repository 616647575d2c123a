from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader

from dml.commands.log_levels import quiet
from dml.ops.run_folder import RunFolder
from dml.training.callbacks import last_checkpoint
from dml.training.callbacks.last_checkpoint import LastCheckpoint


class Line(LightningModule):
    """A module with one weight, which the checkpoint callback asks for a description of its run."""

    def __init__(self) -> None:
        super().__init__()
        self.run_description: dict[str, Any] = {}
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.weight * batch.mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class WrittenSteps(LastCheckpoint):
    """Notes the steps at which the checkpoint is written."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps: list[int] = []

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.steps.append(trainer.global_step)
        super().on_save_checkpoint(trainer, pl_module, checkpoint)


@pytest.mark.parametrize(
    ("steps", "seconds", "expected"),
    [(100, None, [8]), (100, 35, [4, 8]), (100, 1, [1, 2, 3, 4, 5, 6, 7, 8]), (3, 1000, [3, 6, 8])],
)
def test_slow_steps_write_the_checkpoint_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, seconds: float | None, expected: list[int]
):
    quiet()
    written = WrittenSteps(steps, seconds)
    module = Line()
    # a step takes ten seconds
    monkeypatch.setattr(last_checkpoint, "monotonic", lambda: 10.0 * module.global_step if module._trainer else 0.0)
    trainer = Trainer(
        max_steps=8,
        max_epochs=-1,
        devices=1,
        accelerator="cpu",
        callbacks=[written],
        logger=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(torch.ones(8, 1), batch_size=1))
    assert written.steps == expected
    assert RunFolder(tmp_path).last_checkpoint.exists()
