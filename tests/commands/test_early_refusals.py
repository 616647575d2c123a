"""Mistakes that are told before anything is read or built, in one line that names the key and what is right."""

from pathlib import Path

import pytest
from conftest import Refused

from dml.run import builders


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in an empty folder, and fail if a run reads its data set or builds its model."""

    def fail(*_: object) -> None:
        pytest.fail("it was told too late")

    monkeypatch.chdir(tmp_path)
    for name in ("build_table", "build_model"):
        monkeypatch.setattr(builders, name, fail)


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # a part or a value that is missing
        (["~loss"], "loss: no value; give loss=..., such as loss=rll"),
        (["~trainer"], "trainer: no value; give trainer=..., such as trainer=default"),
        (["~sweep"], "sweep: no value; give sweep=..., such as sweep=basic"),
        (["~seed"], "seed: no value; give seed=..."),
        (["~data"], "data: no value; give data=..."),
        (["~loss._target_"], "loss: has no _target_, which names the class to build"),
        (["~transform", "transform.size=112"], "transform"),
        (["model=timm"], "model.backbone.name: no value; give model.backbone.name=..., such as resnet18"),
        (["+stages={a:{training:{ema:???}}}"], "training.ema: no value; give training.ema=..."),
        (["training.init=nowhere.ckpt"], "training.init=nowhere.ckpt: no such file; a checkpoint of another run"),
        # a value that its key can't take
        (["seed=-1"], "seed=-1: must be greater than or equal to 0"),
        (["model.heads=H"], "model.heads=H: must be a valid list"),
        # what an object refuses that is made without the data
        (["+scheduler.schedule.speed=1"], "scheduler.schedule.speed: no such key"),
        (["scheduler.loss={attribute:margin,start:0}"], "scheduler.loss.end: no value; give scheduler.loss.end=..."),
        (["trainer.strategy=dpp"], "trainer: You selected an invalid strategy name: `strategy='dpp'`"),
        (["trainer.devices=-2"], "trainer"),
        (["trainer.gradient_clip_val=-1"], "trainer.gradient_clip_val=-1: must be a finite number, 0 or more"),
        (["trainer.max_time=10"], "trainer.max_time=10: must be days:hours:minutes:seconds, such as 00:08:00:00"),
        # what contradicts something else
        (["dataset=folder", "dataset.fold=1"], "dataset.fold=1: it needs dataset.folds=5, which divides the training"),
        (["transform=rll", "transform.size=336"], "transform.test crops 336 of 256 pixels, and frames each image in"),
        (["recurrent=lstm"], "recurrent: it finds neighbors by a trained network, and the run has none; training"),
        (["+stages.first.dataset.root=other"], "stages.first.dataset: the run's own is that of all stages; give it"),
        (
            ["+stages={first:{},second:{training:{init:a.ckpt}}}"],
            "stages.second.training.init: the run's own is",
        ),
        (["+stages={a:{},b:{loss:triplet}}"], "stages.b.loss=triplet: a stage takes the values of a part; in an"),
        # what an unset variable or a quote too many leaves
        (["hydra.run.dir="], "hydra.run.dir=: names no folder; hydra.run.dir=. is the current one, and without"),
        (["hydra.sweep.dir=''"], "hydra.sweep.dir='': names no folder; hydra.sweep.dir=. is the current one"),
        (["'loss=rll'"], "'loss=rll'"),
        # an option that Hydra doesn't have
        (["--loss=triplet"], "--loss=triplet: no such option; loss=triplet, without hyphens, sets a value"),
        (["--epochs", "10"], "--epochs: no such option; trainer.max_epochs=..."),
    ],
)
def test_what_no_training_can_take(refused: Refused, tmp_path: Path, overrides: list[str], expected: str) -> None:
    assert expected in refused(*overrides)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_data")
def test_a_file_of_the_users_own_that_makes_no_loss(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "my_conf" / "loss" / "mine.yaml"
    path.parent.mkdir(parents=True)
    for text, expected in (
        ("", "loss: has no _target_"),
        ("margin: [1, 2\nscale: 3\n", 'loss/mine.yaml", line 2, column 6'),
    ):
        path.write_text(text)
        assert expected in refused("hydra.searchpath=[my_conf]", "loss=mine")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.usefixtures("without_data")
def test_a_logger_that_is_not_installed(refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dml.run.loop.find_spec", lambda _: None)
    assert "logger=wandb: not installed; pip install 'dml-retrieval[wandb]'" in refused("logger=wandb")
    assert not list(tmp_path.iterdir())


def test_a_test_needs_no_loss_but_a_checkpoint(refused: Refused, tmp_path: Path) -> None:
    assert "no such file" in refused("~loss", f"checkpoint={tmp_path / 'none'}", command="evaluate")
    for value in ([], ["checkpoint="]):
        assert "checkpoint: no value; give checkpoint=..., such as outputs/" in refused(*value, command="evaluate")


def test_preparing_needs_nothing_but_a_data_set(refused: Refused, tmp_path: Path) -> None:
    nowhere = ["dataset=folder", f"dataset.root={tmp_path / 'none'}"]
    assert "no such folder" in refused("~loss", "~model", "~transform", *nowhere, command="prepare")
    assert "data: no value; give data=..." in refused("~data", *nowhere, command="prepare")


def test_a_data_set_without_a_root(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for dataset, place in (("folder", "FOLDER"), ("csv", "FILE"), ("sop", "FOLDER, the folder of Stanford Online")):
        assert f"dataset.root: no value; give dataset.root={place}" in refused(f"dataset={dataset}")
    assert not list(tmp_path.iterdir())


def test_the_folder_that_is_meant_is_named(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos.csv").touch()
    line = refused("dataset=folder", f"dataset.root={tmp_path / 'photo'}")
    assert f"photo: no such folder, but there is {tmp_path / 'photos'}; give" in line
    line = refused("dataset=csv", f"dataset.root={tmp_path / 'photo.csv'}")
    assert f"photo.csv: no such file, but there is {tmp_path / 'photos.csv'}; give" in line


def test_a_sweep_may_be_asked_for_behind_an_override(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Hydra makes the folder of a sweep itself
    assert "loss=trplet: no such choice" in refused("seed=1", "--multirun", "loss=rll,trplet")
