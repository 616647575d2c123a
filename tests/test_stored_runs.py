"""What evaluate.py and resume= take out of a checkpoint or a run's folder: what they need."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from conftest import ROOT, SMALL, Here
from runs import last, metrics

SHORT = [*SMALL, "trainer.max_steps=2", "trainer.val_check_interval=2", "evaluation.raw=false", "evaluation.sheet=null"]


@pytest.fixture(scope="module")
def finished(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that began with a file of weights which is gone, with more classes a batch than other data sets have."""
    from dml.run import main

    folder = tmp_path_factory.mktemp("stored")
    weights = folder / "weights.pth"
    torch.save(timm.create_model("tf_efficientnet_lite0").state_dict(), weights)
    with pytest.MonkeyPatch.context() as patched:
        run = [f"dataset.root={small_emoji}", *SHORT, f"hydra.run.dir={folder / 'run'}"]
        patched.setattr("sys.argv", ["train.py", *run, f"model.backbone.weights={weights}"])
        main("train")
    weights.unlink()
    return folder / "run"


def best(run: Path) -> str:
    return f"checkpoint={run / 'checkpoints' / 'best.ckpt'}"


def copy_with(run: Path, copy: Path, *overrides: str, test_transform: dict[str, Any] | None = None) -> Path:
    """A copy of a run whose checkpoints hold more, as whoever passes them on might have written them."""
    shutil.copytree(run, copy)
    for path in (copy / "checkpoints").iterdir():
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
        checkpoint["run"]["overrides"] += overrides
        checkpoint["run"]["config"]["transform"]["test"] |= test_transform or {}
        torch.save(checkpoint, path)
    return copy


def test_a_test_needs_no_pretrained_weights(here: Here, finished: Path, tmp_path: Path) -> None:
    here("evaluate", best(finished), f"hydra.run.dir={tmp_path}")
    trained = {name: value for name, value in metrics(finished).items() if name not in ("selection", "configuration")}
    assert metrics(tmp_path) == trained


def test_a_test_needs_no_training_classes(
    here: Here, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "data"))
    from trees.tree import write_images

    names = [
        f"{split}/{name}/{i}.png" for split, name in (("train", "a"), ("test", "b"), ("test", "c")) for i in (0, 1)
    ]
    write_images(tmp_path / "images", names)
    other = [
        "dataset=folder",
        f"dataset.root={tmp_path / 'images'}",
        "dataset.reader.val_fraction=0",
        "dataset.folds=5",
    ]
    here("evaluate", best(finished), *other, f"hydra.run.dir={tmp_path / 'test'}")
    found = metrics(tmp_path / "test")
    assert 0 <= found["level0/recall@1"] <= 1
    assert found["step"] == 2


def test_a_test_builds_no_loss_sampler_or_optimizer(here: Here, finished: Path, tmp_path: Path) -> None:
    missing = [f"{part}._target_=not_installed.Anything" for part in ("loss", "sampler", "optimizer")]
    run = copy_with(finished, tmp_path / "run", *missing)
    here("evaluate", best(run), f"hydra.run.dir={tmp_path / 'test'}")
    assert metrics(tmp_path / "test")["level0/recall@1"] == metrics(finished)["level0/recall@1"]


def test_a_checkpoint_of_before_epochs_were_told_is_tested_without(here: Here, finished: Path, tmp_path: Path) -> None:
    checkpoint = last(finished)
    checkpoint["run"] = {key: checkpoint["run"][key] for key in ("overrides", "config", "stage", "first_step")}
    torch.save(checkpoint, tmp_path / "old.ckpt")
    here("evaluate", f"checkpoint={tmp_path / 'old.ckpt'}", f"hydra.run.dir={tmp_path / 'test'}")
    found = metrics(tmp_path / "test")
    assert "epoch" not in found
    assert found["step"] == 2
