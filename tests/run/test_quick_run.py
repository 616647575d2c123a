import json
from pathlib import Path

import pytest
from conftest import ONE_HEAD, Here
from omegaconf import OmegaConf

from dml.run.stages import QUICK_CLASSES, QUICK_CLASSES_PER_BATCH, QUICK_STEPS, shorten


def test_a_quick_run_trains_tests_and_is_tested_again(tmp_path: Path, here: Here, capfd: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    small = [value for value in ONE_HEAD if not value.startswith("trainer.max_steps")]
    here("train", "quick=true", "trainer.max_epochs=500", *small, f"hydra.run.dir={run}")
    printed = capfd.readouterr().out
    assert "its metrics say nothing" in printed
    assert f"of {QUICK_CLASSES} classes" in printed
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["step"] in (QUICK_STEPS // 2, QUICK_STEPS)
    here(
        "evaluate",
        f"checkpoint={run / 'checkpoints' / 'best.ckpt'}",
        f"hydra.run.dir={tmp_path / 'again'}",
    )
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    assert again["level0/recall@1"] == metrics["level0/recall@1"]


@pytest.mark.parametrize("warmup", [{"warmup_steps": 500}, {"warmup_steps": 0, "warmup_epochs": 2}])
def test_every_length_becomes_short(warmup: dict[str, int]):
    trainer = {"max_steps": None, "max_epochs": 30, "val_check_interval": None, "check_val_every_n_epoch": 1}
    config = OmegaConf.create({"trainer": trainer, "scheduler": warmup, "training": {"bank_every_n_steps": 700}})
    shorten(config)
    assert config.trainer == {
        "max_steps": QUICK_STEPS,
        "max_epochs": None,
        "val_check_interval": QUICK_STEPS // 2,
        "check_val_every_n_epoch": None,
    }
    assert (config.scheduler.warmup_steps, config.scheduler.warmup_epochs) == (1, None)
    assert config.training.bank_every_n_steps is None


def test_a_shorter_run_stays_as_short_and_large_batches_get_fewer_classes():
    trainer = {"max_steps": 4, "max_epochs": None, "val_check_interval": 100, "check_val_every_n_epoch": None}
    parts = {
        "scheduler": {"warmup_steps": 0},
        "training": {"bank_every_n_steps": None},
        "sampler": {"classes_per_batch": 450},
    }
    config = OmegaConf.create({"trainer": trainer, **parts})
    shorten(config)
    assert (config.trainer.max_steps, config.trainer.val_check_interval) == (4, 2)
    assert config.sampler.classes_per_batch == QUICK_CLASSES_PER_BATCH
    config.sampler.classes_per_batch = "auto"
    shorten(config)
    assert config.sampler.classes_per_batch == "auto"


def test_a_run_without_validation_stays_one():
    trainer = {"max_steps": 400, "max_epochs": None, "val_check_interval": None, "check_val_every_n_epoch": None}
    config = OmegaConf.create(
        {"trainer": trainer, "scheduler": {"warmup_steps": 0}, "training": {"bank_every_n_steps": None}}
    )
    shorten(config)
    assert config.trainer.val_check_interval is None
    assert config.scheduler.warmup_steps == 0
