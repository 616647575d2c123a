import csv
from pathlib import Path

import pytest
from conftest import ONE_HEAD, Here

from dml.runtime.run_folder import RunFolder


def validated_steps(folder: Path) -> list[int]:
    """Return the steps of a run that have a validation's recall@1 in metrics.csv."""
    return [*RunFolder(folder).values("val/level0/recall@1")]


@pytest.mark.parametrize(
    ("steps", "interval", "batches", "expected"), [(6, 3, 1, [3, 6]), (3, 2, 2, [2, 3]), (3, "null", 1, [])]
)
def test_the_last_step_is_validated(
    tmp_path: Path, here: Here, small_emoji: Path, steps: int, interval: int | str, batches: int, expected: list[int]
):
    lengths = [f"trainer.max_steps={steps}", f"trainer.val_check_interval={interval}"]
    accumulated = f"trainer.accumulate_grad_batches={batches}"
    here("train", *ONE_HEAD, f"dataset.root={small_emoji}", *lengths, accumulated, f"hydra.run.dir={tmp_path}")
    assert validated_steps(tmp_path) == expected
    folder = RunFolder(tmp_path)
    assert folder.metrics()["selection"] == ("val" if expected else "last")
    with folder.history_file.open() as file:
        assert max(int(row["step"]) for row in csv.DictReader(file)) == steps


def test_a_run_that_goes_on_longer_validates_at_its_new_end(tmp_path: Path, here: Here, small_emoji: Path):
    arguments = [*ONE_HEAD, f"dataset.root={small_emoji}", "trainer.val_check_interval=3"]
    here("train", *arguments, "trainer.max_steps=4", f"hydra.run.dir={tmp_path}")
    here("train", f"resume={tmp_path}", "trainer.max_steps=8")
    assert validated_steps(tmp_path) == [3, 4, 6, 8]
