"""A run with the key `compile`."""

from pathlib import Path

import pytest
from conftest import ONE_HEAD, Here
from runs import metrics


def test_it_says_what_the_first_step_does(
    here: Here, small_emoji: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    short = [f"dataset.root={small_emoji}", *ONE_HEAD, "trainer.max_steps=1", "trainer.val_check_interval=null"]
    here("train", *short, "training.compile={backend: eager}", f"hydra.run.dir={tmp_path}")
    assert "compile  the first step compiles the network" in capfd.readouterr().out
    assert metrics(tmp_path)["step"] == 1
