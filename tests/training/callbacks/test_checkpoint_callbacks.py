from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader
from trainers import Falling, small_trainer

from dml.runtime.run_folder import RunFolder
from dml.training.callbacks import checkpoints
from dml.training.callbacks.checkpoints import LastCheckpoint


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
    written = WrittenSteps(steps, seconds)
    module = Falling()
    # a step takes ten seconds
    monkeypatch.setattr(checkpoints, "monotonic", lambda: 10.0 * module.global_step if module._trainer else 0.0)
    trainer = small_trainer(8, callbacks=[written], default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(module, DataLoader(torch.ones(8, 1), batch_size=1))
    assert written.steps == expected
    assert RunFolder(tmp_path).last_checkpoint.exists()


class EndAfterTwoSteps(Callback):
    """Ends a training as Lightning's Timer does when ``trainer.max_time`` is over."""

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.should_stop |= trainer.global_step >= 2


def test_a_training_that_is_to_end_early_takes_the_fewest_steps_and_writes_the_last(tmp_path: Path) -> None:
    written = WrittenSteps(100)
    settings = {"min_steps": 4, "min_epochs": 0, "enable_checkpointing": True}
    trainer = small_trainer(8, callbacks=[EndAfterTwoSteps(), written], default_root_dir=tmp_path, **settings)
    trainer.fit(Falling(), DataLoader(torch.ones(8, 1), batch_size=1))
    assert trainer.global_step == 4
    assert written.steps == [4]
