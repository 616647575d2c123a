import io
import re
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from rich.console import Console
from torch.utils.data import DataLoader

from dml.runtime.imports import quiet
from dml.training.callbacks import progress
from dml.training.callbacks.progress import Progress, ProgressLines


class Counting(LightningModule):
    """Learns nothing; its loss is the step's number."""

    validated_on = "val"

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.weight * 0 + self.global_step
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self.log("val/level0/queries_without_positives", 7.0)
        for k in (1, 2, 4, 8, 16):
            self.log(f"val/level1/recall@{k}", 0.9)
            self.log(f"val/level0/recall@{k}", 0.5 + k / 100)
        self.log("val/level0/map@r", 0.4)
        self.log("val/heads/H/h_ap", 0.9)
        self.log("val/queries_without_positives", 7.0)
        self.log("val/h_ap", 0.3)
        self.log("val/level0/opis", 0.0125)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches(number: int) -> DataLoader[Any]:
    images = torch.zeros(4 * number, 3, 2, 2)
    return DataLoader(torch.utils.data.TensorDataset(images), batch_size=4)


def trainer(bar: Callback, **settings: Any) -> Trainer:
    quiet()
    plain = {"devices": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    plain["enable_progress_bar"] = isinstance(bar, Progress)
    return Trainer(callbacks=[bar], enable_model_summary=False, num_sanity_val_steps=0, **plain, **settings)


def run(bar: Callback, **settings: Any) -> None:
    options = {"max_steps": 6, "val_check_interval": 6, "check_val_every_n_epoch": None} | settings
    trainer(bar, **options).fit(Counting(), batches(12), batches(3))


TRAINING = re.compile(r"training step (\d+) of 6, loss (\d+), [\d,]+ images/s, \d:\d\d:\d\d left")


@pytest.mark.parametrize("accumulated", [1, 2])
def test_lines_say_how_far_training_is(capsys: pytest.CaptureFixture[str], accumulated: int) -> None:
    run(ProgressLines(interval=0), accumulate_grad_batches=accumulated)
    lines = capsys.readouterr().out.splitlines()
    trained = [match.groups() for line in lines if (match := TRAINING.fullmatch(line))]
    expected = [(str(batch // accumulated), str((batch - 1) // accumulated)) for batch in range(1, 6 * accumulated + 1)]
    assert trained == expected
    assert lines.count("val      step 6: recall@1 51.0%, map@r 40.0%, h_ap 30.0%, opis 0.0125") >= 1
    assert [line.partition(", ")[0] for line in lines if line.startswith("validating")][:3] == [
        f"validating batch {batch} of 3" for batch in (1, 2, 3)
    ]


def test_lines_are_rare_but_a_validation_is_told_at_once_and_a_test_soon(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(ProgressLines())
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["val      step 6"]
    for interval, estimate, expected in ((0, 5.0, (1, 2, 3)), (30.0, 1e-9, (1,))):
        monkeypatch.setattr(progress, "TEST_ESTIMATE", estimate)
        trainer(ProgressLines(interval)).test(Counting(), batches(3), verbose=False)
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(", ")[0] for line in lines] == [f"testing  batch {batch} of 3" for batch in expected]


def test_a_terminal_shows_a_bar_and_each_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("pytorch_lightning.callbacks.progress.rich_progress.get_console", lambda: console)
    run(Progress())
    text = re.sub(r"\x1b\[[\d;?]*\w", "", screen.getvalue())
    assert "val      step 6: recall@1 51.0%, map@r 40.0%, h_ap 30.0%, opis 0.0125" in text
    assert re.search(r"Training .* 6/6 .*loss: 5\.000", text)


@pytest.mark.parametrize(("environment", "kind"), [({}, ProgressLines), ({"FORCE_COLOR": "1"}, Progress)])
def test_a_bar_is_for_terminals(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], kind: type) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert type(progress.make_progress()) is kind
