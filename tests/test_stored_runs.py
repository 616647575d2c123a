"""What evaluate.py and resume= take out of a checkpoint or a run's folder: what they need, and no code to run."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from configurations import CONF, compose
from conftest import ONE_HEAD, Here, Refused
from omegaconf import OmegaConf
from runs import last, metrics, train
from trees.tree import write_images

from dml.models.small_cnn import small_cnn
from dml.run.stored import PROCESSES
from dml.runtime.configuration import flat, is_below
from dml.runtime.run_folder import RunFolder

SHORT = [*ONE_HEAD, "trainer.max_steps=2", "trainer.val_check_interval=2"]

OWN_LOSS = """
import torch

class OwnLoss(torch.nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.square().mean()
"""


@pytest.fixture(scope="module")
def finished(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that began with a file of weights which is gone, with more classes a batch than other data sets have."""
    folder = tmp_path_factory.mktemp("stored")
    weights = folder / "weights.pth"
    torch.save(small_cnn().network.state_dict(), weights)
    run = train(folder / "run", f"dataset.root={small_emoji}", *SHORT, f"model.backbone.weights={weights}")
    weights.unlink()
    return run


def best(run: Path) -> str:
    return f"checkpoint={run / 'checkpoints' / 'best.ckpt'}"


def copy_with(run: Path, copy: Path, **values: Any) -> Path:
    """A copy of a run whose files hold other values by dotted key, as whoever passes them on might write them."""
    shutil.copytree(run, copy)
    for path in (copy / "checkpoints").iterdir():
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
        config = OmegaConf.create(checkpoint["run"]["config"])
        for key, value in values.items():
            OmegaConf.update(config, key, value, force_add=True)
        checkpoint["run"]["config"] = OmegaConf.to_container(config, resolve=False)
        torch.save(checkpoint, path)
    (copy / ".hydra" / "config.yaml").write_text(yaml.safe_dump(checkpoint["run"]["config"]))
    return copy


def test_a_test_needs_no_pretrained_weights(here: Here, finished: Path, tmp_path: Path) -> None:
    here("evaluate", best(finished), f"hydra.run.dir={tmp_path}")
    trained = {name: value for name, value in metrics(finished).items() if name != "configuration"}
    assert metrics(tmp_path) == trained


@pytest.fixture
def other_data(tmp_path: Path) -> list[str]:
    """The overrides that choose a folder of a few images in place of the run's data set."""
    names = [
        f"{split}/{name}/{i}.png" for split, name in (("train", "a"), ("test", "b"), ("test", "c")) for i in (0, 1)
    ]
    write_images(tmp_path / "images", names)
    return [
        "dataset=folder",
        f"dataset.root={tmp_path / 'images'}",
        "dataset.reader.val_fraction=0",
        "dataset.folds=5",
    ]


def test_a_test_needs_no_training_classes(here: Here, finished: Path, tmp_path: Path, other_data: list[str]) -> None:
    here("evaluate", best(finished), *other_data, f"hydra.run.dir={tmp_path / 'test'}")
    found = metrics(tmp_path / "test")
    assert 0 <= found["level0/recall@1"] <= 1
    assert found["step"] == 2


def test_another_data_set_has_none_of_the_options_of_the_runs(
    here: Here, refused: Refused, finished: Path, tmp_path: Path, other_data: list[str]
) -> None:
    run = copy_with(finished, tmp_path / "run", **{"dataset.counts": {"test": {"images": 1}}})
    again = f"hydra.run.dir={tmp_path / 'test'}"
    assert "published 1" in refused(best(run), again, command="evaluate")
    here("evaluate", best(run), *other_data, again)


def test_a_test_builds_no_loss_sampler_or_optimizer(here: Here, finished: Path, tmp_path: Path) -> None:
    missing = {f"{part}._target_": "not_installed.Anything" for part in ("loss", "sampler", "optimizer")}
    run = copy_with(finished, tmp_path / "run", **missing)
    here("evaluate", best(run), f"hydra.run.dir={tmp_path / 'test'}")
    assert metrics(tmp_path / "test")["level0/recall@1"] == metrics(finished)["level0/recall@1"]


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_a_checkpoint_runs_no_code(refused: Refused, finished: Path, tmp_path: Path, command: str) -> None:
    made = tmp_path / "made"
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(Evil(made)))
    load = {"_target_": "torch.load", "weights_only": False, "f": str(tmp_path / "evil.pickle")}
    run = copy_with(finished, tmp_path / "run", **{"transform.test.x": load})
    source = best(run) if command == "evaluate" else f"resume={run}"
    try:
        line = refused(source, f"hydra.run.dir={tmp_path / 'test'}", command=command)
    finally:
        assert not made.exists()
    assert f"{source}: transform.test.x._target_=torch.load comes from this file" in line


def test_what_a_file_says_of_hydra_is_ignored(here: Here, finished: Path, tmp_path: Path) -> None:
    """Values of the configuration alone are taken, and none of the files that a part names."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    checkpoint: dict[str, Any] = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    make = {"_target_": "os.mkdir", "path": str(tmp_path / "made")}
    config = checkpoint["run"]["config"]
    config |= {"hydra": {"callbacks": {"x": make}}, "defaults": [{"override hydra/launcher": "joblib"}], "x": make}
    config["evaluation"]["defaults"] = [{"/loss@_global_.hydra.callbacks.x": "rll"}]
    torch.save(checkpoint, run / "checkpoints" / "best.ckpt")
    here("evaluate", best(run), f"hydra.run.dir={tmp_path / 'test'}")
    assert metrics(tmp_path / "test")["level0/recall@1"] == metrics(finished)["level0/recall@1"]
    assert not (tmp_path / "made").exists()


def test_a_folder_does_not_read_the_environment(
    refused: Refused, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DML_TEST_SECRET", "hunter2")
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "checkpoints")
    config = RunFolder(run).config
    config["loss"]["margin"] = "${oc.decode:${oc.env:DML_TEST_SECRET}}"
    (run / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    line = refused(f"resume={run}")
    assert "loss.margin" in line
    assert "hunter2" not in line


def test_trainers_differ_in_their_processes_alone() -> None:
    default = flat(OmegaConf.to_container(compose().trainer, resolve=False), "trainer")
    for path in (CONF / "trainer").glob("*.yaml"):
        other = flat(OmegaConf.to_container(compose(f"trainer={path.stem}").trainer, resolve=False), "trainer")
        changed = [key for key in {**default, **other} if default.get(key) != other.get(key)]
        assert all(is_below(key, [f"trainer.{name}" for name in PROCESSES]) for key in changed), changed


def test_a_loss_of_ones_own_is_resumed_if_the_run_is_trusted(
    here: Here,
    refused: Refused,
    small_emoji: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "own_package.py").write_text(OWN_LOSS)
    monkeypatch.syspath_prepend(str(tmp_path))
    run, own = tmp_path / "run", ["~loss", "+loss._target_=own_package.OwnLoss"]
    here("train", f"dataset.root={small_emoji}", *SHORT, *own, f"hydra.run.dir={run}")
    assert last(run)["global_step"] == 2

    line = refused(f"resume={run}", "trainer.max_steps=3")
    assert line.startswith(f"error: resume={run}: loss._target_=own_package.OwnLoss comes from this file")
    assert line.endswith("trust=true if you trust this file")
    assert last(run)["global_step"] == 2

    capfd.readouterr()
    here("train", f"resume={run}", "trainer.max_steps=3", "trust=true")
    assert f"trusted  resume={run}: loss._target_=own_package.OwnLoss" in capfd.readouterr().out
    assert last(run)["global_step"] == 3
