"""Runs with an adapter: their checkpoints, and all that reads them."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from conftest import SHORT_RUN, Here, Refused
from runs import metrics, train

import dml
from dml.runtime.errors import InputError
from dml.training.checkpoints import read_checkpoint

QUICK = ["evaluation.metrics=[recall]", "evaluation.heads=false", "evaluation.raw=false", "evaluation.sheet=null"]
QUICK += ["evaluation.threshold=null"]
VIT = ["model=dinov2_small", "model.backbone.name=test_vit", "optimizer.lr=1e-2"]
LORA = [*SHORT_RUN, *QUICK, *VIT, "adapter=lora", "adapter.rank=2", "adapter.dropout=0.2"]
LORA += ["training.ema=0.9", "training.gradient_cache=3", "checkpoints.every_n_steps=100", "scheduler=constant"]
LORA += ["trainer.max_steps=4", "trainer.val_check_interval=2"]


@pytest.fixture(scope="module")
def arguments(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    weights = tmp_path_factory.mktemp("weights") / "vit.pth"
    torch.manual_seed(7)
    torch.save(timm.create_model("test_vit").state_dict(), weights)
    return [f"dataset.root={small_emoji}", *LORA, f"model.backbone.weights={weights}"]


@pytest.fixture(scope="module")
def finished(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("adapter") / "finished", *arguments)


def test_checkpoints_hold_what_was_trained(finished: Path) -> None:
    for name in ("best", "last"):
        checkpoint = read_checkpoint(finished / "checkpoints" / f"{name}.ckpt")
        for state in (checkpoint["state_dict"], checkpoint["current_model_state"]):
            assert len(state) == 2 * 6 + 2  # an update in each block; weight and bias of the head
            assert all(".lora_" in key or key.startswith("model.heads.") for key in state)
        assert len(checkpoint["optimizer_states"][0]["state"]) == 2 * 6 + 2
    assert (finished / "checkpoints" / "last.ckpt").stat().st_size < 250_000  # the network has 1.3 MB


def test_an_interrupted_run_ends_bit_for_bit_the_same(
    here: Here, arguments: list[str], finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here("train", *arguments, f"hydra.run.dir={tmp_path}", "trainer.max_steps=3")
    assert "3,592 of 309,832 parameters (1.2%) are trained" in " ".join(capfd.readouterr().out.split())
    here("train", f"resume={tmp_path}", "trainer.max_steps=4")
    expected, found = (read_checkpoint(folder / "checkpoints" / "last.ckpt") for folder in (finished, tmp_path))
    assert found["frozen"] == expected["frozen"]
    for part in ("state_dict", "current_model_state"):
        assert found[part].keys() == expected[part].keys()
        assert all(torch.equal(found[part][name], value) for name, value in expected[part].items())


def test_an_evaluation_repeats_the_digits(here: Here, finished: Path, tmp_path: Path) -> None:
    here("evaluate", f"checkpoint={finished / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={tmp_path}")
    trained = {name: value for name, value in metrics(finished).items() if name != "configuration"}
    assert metrics(tmp_path) == trained


def test_a_saved_model_is_a_plain_one(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    model = dml.load(finished)
    vectors = model.embed(images)
    names = [name for name, _ in model.model.named_parameters()]
    assert not any("lora" in name or "base_layer" in name for name in names)
    model.save_pretrained(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "peft", None)  # as if it weren't installed
    saved = dml.load(tmp_path / "saved")
    np.testing.assert_allclose(saved.embed(images), vectors, rtol=0, atol=1e-6)
    assert saved.fingerprint == model.fingerprint
    with pytest.raises(InputError, match="peft: not installed"):
        dml.load(finished)


def test_frozen_weights_that_changed_are_told(
    refused: Refused, finished: Path, arguments: list[str], tmp_path: Path
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    best = run / "checkpoints" / "best.ckpt"
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "other.pth")
    other = f"model.backbone.weights={tmp_path / 'other.pth'}"
    line = "trained with frozen weights of fingerprint "
    assert line in refused(f"checkpoint={best}", other, f"hydra.run.dir={tmp_path / 'test'}", command="evaluate")
    assert line in refused(f"resume={run}", other, "trainer.max_steps=5")
    with pytest.raises(InputError, match=line):
        dml.load(run, weights=tmp_path / "other.pth")
    with pytest.raises(InputError, match="no such file"):
        dml.load(run, weights=tmp_path / "none.pth")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "adapter",
    [
        "adapter=lora adapter.rank=3 adapter.dropout=0",
        "adapter=lora adapter.rank=2 adapter.alpha=64 adapter.dropout=0",
        "adapter=none",
    ],
)
def test_a_run_begins_with_updates_of_another_one(
    here: Here, arguments: list[str], finished: Path, tmp_path: Path, adapter: str
) -> None:
    """They are in the weights of the new run, whose checkpoint therefore holds those that they changed."""
    last = finished / "checkpoints" / "last.ckpt"
    still = ["optimizer.lr=0", "training.ema=null", "trainer.max_steps=1", "trainer.val_check_interval=null"]
    plain = [argument for argument in arguments if not argument.startswith(("adapter", "ema", "optimizer.lr"))]
    here("train", *plain, *adapter.split(), *still, f"training.init={last}", f"hydra.run.dir={tmp_path}")
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    np.testing.assert_allclose(dml.load(tmp_path).embed(images), dml.load(last).embed(images), rtol=0, atol=1e-6)
    names = read_checkpoint(tmp_path / "checkpoints" / "last.ckpt").get("frozen", {"names": []})["names"]
    assert bool(names) == (adapter != "adapter=none")
    assert not any(name.endswith("qkv.base_layer.weight") for name in names)
