import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from trainers import Falling, small_trainer

from dml.runtime.errors import InputError
from dml.training.callbacks.checkpoints import AtomicCheckpointIO, LastCheckpoint
from dml.training.loggers import History


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_a_step_and_a_column_a_metric(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    history = History(path)
    history.log_metrics({"loss": 0.5}, step=0)
    history.log_metrics({"loss": 0.25}, step=1)
    history.log_metrics({"val/recall@1": 0.75}, step=1)
    expected = [
        {"step": "1", "loss": "0.5", "val/recall@1": ""},
        {"step": "2", "loss": "0.25", "val/recall@1": "0.75"},
    ]
    assert rows(path) == expected  # a validation is on the disk at once
    again = History(path)  # a new run
    again.log_metrics({"loss": 2.0}, step=0)
    again.finalize("success")
    assert [row["loss"] for row in rows(path)] == ["2.0"]


def test_a_resumed_run_keeps_what_it_goes_on_from(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = History(path)
    for step in range(4):
        first.log_metrics({"loss": float(step)}, step=step)
    first.save()
    second = History(path, resumed_at=2)
    second.log_metrics({"loss": 9.0}, step=2)
    second.save()
    assert [(row["step"], row["loss"]) for row in rows(path)] == [("1", "0.0"), ("2", "1.0"), ("3", "9.0")]


@pytest.mark.parametrize(("old", "new"), [("1.0", "1.5"), ("\n2,", "\n3,"), ("\n1,0.0", "")])
def test_a_history_that_its_checkpoint_was_not_written_with_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "metrics.csv"
    first = History(path)
    for step in range(2):
        first.log_metrics({"loss": float(step)}, step=step)
    checksum = first.checksum
    first.log_metrics({"loss": 2.0, "val/recall": 0.1}, step=2)  # a later row, and another column
    assert History(path, 2, checksum).checksum == checksum
    path.write_text(path.read_text().replace("\r", "").replace(old, new, 1))
    with pytest.raises(InputError, match=r"metrics\.csv: damaged .*; delete it, and "):
        History(path, 2, checksum)


def test_a_run_that_has_logged_nothing_has_a_history_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    History(path).save()  # as Lightning does after each step
    assert History(path, resumed_at=2).rows == {}
    path.write_bytes(b"\r\n")  # as older versions did
    assert History(path, resumed_at=2).rows == {}


@pytest.mark.parametrize("every", [1, 2])
def test_a_checkpoint_never_stands_without_the_row_of_its_step(tmp_path: Path, every: int) -> None:
    path, seen = tmp_path / "metrics.csv", {}

    class Watched(AtomicCheckpointIO):
        def save_checkpoint(self, checkpoint: dict[str, Any], *_: Any, **__: Any) -> None:
            seen[checkpoint["global_step"]] = rows(path)

    trainer = small_trainer(
        5,
        enable_checkpointing=True,
        log_every_n_steps=every,
        callbacks=[LastCheckpoint(every_n_steps=1)],
        plugins=[Watched()],
    )
    trainer.loggers = [History(path)]
    numbers: Any = torch.arange(20.0)
    trainer.fit(Falling(), DataLoader(numbers, batch_size=2))
    logged = range(every, 6, every)
    assert [row["step"] for row in rows(path)] == [str(step) for step in logged]
    assert len({row["loss"] for row in rows(path)}) == len(logged)
    assert {step: found for step, found in seen.items() if step in logged} == {
        step: rows(path)[: step // every] for step in logged
    }
    assert set(seen) == set(range(1, 6))
    assert {row["epoch"] for found in seen.values() for row in found} == {"7.0"}
