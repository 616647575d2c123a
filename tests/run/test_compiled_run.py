"""A run with the key `compile`."""

from pathlib import Path

import pytest
from conftest import PLAIN, Here
from runs import metrics


def test_it_says_what_the_first_step_does(
    here: Here, small_emoji: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    short = [f"dataset.root={small_emoji}", *PLAIN, "trainer.max_steps=1", "trainer.val_check_interval=null"]
    for value, is_told in (("{backend: eager}", True), ("false", False)):
        here("train", *short, f"training.compile={value}", f"hydra.run.dir={tmp_path / str(is_told)}")
        assert ("compile  the first step compiles the network" in capfd.readouterr().out) == is_told
        assert metrics(tmp_path / str(is_told))["step"] == 1
