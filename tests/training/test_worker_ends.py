"""The workers of a training end with it, also where the process goes on, as in a sweep."""

from multiprocessing import active_children
from pathlib import Path

from conftest import PLAIN, Here, Refused


def test_no_worker_outlives_its_training(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    before = set(active_children())
    arguments = [f"dataset.root={small_emoji}", *PLAIN, "data.num_workers=2"]
    here("train", *arguments, "trainer.max_steps=2", "trainer.val_check_interval=2", f"hydra.run.dir={tmp_path}")
    assert set(active_children()) <= before


def test_no_worker_outlives_a_training_that_fails(refused: Refused, small_emoji: Path, tmp_path: Path) -> None:
    before = set(active_children())
    arguments = [f"dataset.root={small_emoji}", *PLAIN, "data.num_workers=2"]
    refused(*arguments, "optimizer.lr=1e30", f"hydra.run.dir={tmp_path}")
    assert set(active_children()) <= before
