from pathlib import Path

from conftest import ONE_HEAD, Here

from dml.runtime.run_folder import RunFolder


def validated_steps(folder: Path) -> list[int]:
    """Return the steps of a run that have a validation's recall@1 in metrics.csv."""
    return [*RunFolder(folder).values("val/level0/recall@1")]


def test_the_last_step_is_validated_under_accumulation(tmp_path: Path, here: Here, small_emoji: Path):
    lengths = ["trainer.max_steps=3", "trainer.val_check_interval=2", "trainer.accumulate_grad_batches=2"]
    here("train", *ONE_HEAD, f"dataset.root={small_emoji}", *lengths, f"hydra.run.dir={tmp_path}")
    assert validated_steps(tmp_path) == [2, 3]
    folder = RunFolder(tmp_path)
    assert folder.metrics()["selection"] == "val"
    assert folder.history()[-1]["step"] == "3"


def test_a_run_that_goes_on_longer_validates_at_its_new_end(tmp_path: Path, here: Here, small_emoji: Path):
    arguments = [*ONE_HEAD, f"dataset.root={small_emoji}", "trainer.val_check_interval=3"]
    here("train", *arguments, "trainer.max_steps=4", f"hydra.run.dir={tmp_path}")
    here("train", f"resume={tmp_path}", "trainer.max_steps=8")
    assert validated_steps(tmp_path) == [3, 4, 6, 8]
