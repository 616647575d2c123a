import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ONE_HEAD, Here
from omegaconf import DictConfig, OmegaConf

from dml.run import builders, loop
from dml.run.loop import QUICK_CLASSES_PER_BATCH, QUICK_STEPS, shorten
from dml.run.stored import Stage


def test_a_quick_run_trains_tests_and_is_tested_again(
    tmp_path: Path,
    here: Here,
    small_emoji: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(builders, "QUICK_CLASSES", 12)
    monkeypatch.setattr(loop, "QUICK_STEPS", 4)
    run = tmp_path / "run"
    small = [value for value in ONE_HEAD if not value.startswith("trainer.max_steps")]
    here("train", f"dataset.root={small_emoji}", "quick=true", "trainer.max_epochs=500", *small, f"hydra.run.dir={run}")
    printed = capfd.readouterr().out
    assert "its metrics say nothing" in printed
    assert "of 12 classes" in printed
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["step"] in (2, 4)
    here(
        "evaluate",
        f"checkpoint={run / 'checkpoints' / 'best.ckpt'}",
        f"hydra.run.dir={tmp_path / 'again'}",
    )
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    assert again["level0/recall@1"] == metrics["level0/recall@1"]


def shortened(trainer: dict[str, Any], typed: tuple[str, ...] = (), **parts: Any) -> DictConfig:
    lengths = {"max_steps": None, "max_epochs": None, "val_check_interval": None, "check_val_every_n_epoch": None}
    others = {"scheduler": {"warmup_steps": 0}, "training": {"bank_every_n_steps": 700}}
    config = OmegaConf.create({"trainer": lengths | trainer, **others, **parts})
    shorten(Stage("", config), typed)
    return config


@pytest.mark.parametrize("warmup", [{"warmup_steps": 500}, {"warmup_steps": 0, "warmup_epochs": 2}])
def test_every_length_becomes_short(warmup: dict[str, int]):
    config = shortened({"max_epochs": 30, "check_val_every_n_epoch": 1}, scheduler=warmup)
    assert (config.trainer.max_steps, config.trainer.val_check_interval) == (QUICK_STEPS, QUICK_STEPS // 2)
    assert config.trainer.max_epochs is config.trainer.check_val_every_n_epoch is None
    assert (config.scheduler.warmup_steps, config.scheduler.warmup_epochs) == (1, None)
    assert config.training.bank_every_n_steps is None


@pytest.mark.parametrize(
    ("steps", "typed", "expected"), [(4, (), 4), (40, (), QUICK_STEPS), (40, ("trainer.max_steps",), 40)]
)
def test_a_shorter_run_stays_as_short_and_typed_steps_win(steps: int, typed: tuple[str, ...], expected: int):
    config = shortened({"max_steps": steps, "val_check_interval": 100}, typed)
    assert (config.trainer.max_steps, config.trainer.val_check_interval) == (expected, expected // 2)
    assert shortened({"max_steps": steps}).trainer.val_check_interval is None  # without a validation it stays so


def test_large_batches_get_fewer_classes():
    for classes, expected in ((450, QUICK_CLASSES_PER_BATCH), ("auto", "auto")):
        config = shortened({}, sampler={"classes_per_batch": classes})
        assert config.sampler.classes_per_batch == expected
