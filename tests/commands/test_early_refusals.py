"""Mistakes that are told before anything is read or built, and before the first line where they can be."""

from pathlib import Path

import pytest
from conftest import Here, Refused

from dml.run import builders

GROUPS = ["loss", "dataset", "trainer", "logger", "sweep"]


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
        (["optimizer.lr=-1"], "optimizer.lr=-1: must be a finite number, 0 or more"),
        (["+optimizer.betas=[2,0]"], "optimizer: Invalid beta parameter at index 0: 2"),
        (["scheduler.schedule.eta_min=abc"], "scheduler.schedule.eta_min=abc: must be a number"),
        (["+scheduler.schedule.speed=1"], "unexpected keyword argument 'speed'"),
        (["scheduler.warmup_epochs=nan"], "scheduler.warmup_epochs=nan: must be a number, 0 or more, or null"),
        (["loss.margin=nan"], "loss.margin=nan: must be a finite number"),
        (["loss=csl", "loss.margins=[0.1,inf]"], "loss.margins[1]=inf: must be a finite number"),
        (["seed=-1"], "seed=-1: must be a whole number, 0 or more"),
        (["checkpoints.every_n_steps=0"], "checkpoints.every_n_steps=0: must be a whole number, 1 or more"),
        (["scheduler.loss={attribute:margin,start:0}"], "scheduler.loss={attribute, start}: takes attribute, start,"),
        (["trainer.strategy=dpp"], "trainer.strategy=dpp: unknown; nearest: ddp"),
        (["trainer.sync_batchnorm=true"], "trainer.sync_batchnorm=true: replaces the batch normalizations that conv"),
        (["training.compile={mode: max-autotune}", "training.gradient_cache=8"], "its CUDA graphs overwrite what"),
        (
            ["training.compile={mode: reduce-overhead}", "trainer.accumulate_grad_batches=2"],
            "accumulate_grad_batches keeps; ",
        ),
        (["dataset=folder", "dataset.fold=1"], "dataset.fold=1: it needs dataset.folds=5, which divides the training"),
        (["+stages.first.dataset.root=other"], "stages.first.dataset: all stages share the run's dataset; give"),
        (
            ["+stages={first:{},second:{training:{init:a.ckpt}}}"],
            "stages.second.training.init: a later stage goes on",
        ),
        (["+stages={a:{},b:{loss:triplet}}"], "stages.b.loss=triplet: a stage takes the values of a part; in an"),
        (["+stages={a:{},b:{sampler:n_pair}}"], "/sampler@stages.b.sampler: n_pair chooses another"),
        (["trainer.devices=-2"], "trainer.devices=-2: at least 1, or auto for all GPUs"),
        (["trainer.gradient_clip_val=-1"], "trainer.gradient_clip_val=-1: must be 0 or more"),
        (["trainer.max_time=10"], "trainer.max_time=10: must be days:hours:minutes:seconds, such as 00:08:00:00"),
        (
            ["+trainer.max_time=00:00:00:00"],
            "trainer.max_time=00:00:00:00: must be days:hours:minutes:seconds",
        ),
        (["recurrent=lstm"], "recurrent: it finds neighbors by a trained network, and the run has none; training"),
    ],
)
def test_a_setting_that_no_training_can_take(
    refused: Refused, tmp_path: Path, overrides: list[str], expected: str
) -> None:
    assert expected in refused(*overrides)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_that_is_taken_out(here: Here, tmp_path: Path, capfd: pytest.CaptureFixture[str], group: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        here("train", f"~{group}")
    assert stopped.value.code == 2
    printed = capfd.readouterr()
    beginning = f"error: ~{group}: train needs {group}; give {group}=..., such as the default {group}="
    assert printed.err.startswith(beginning)
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["~seed"], "~seed: train needs seed; its default is seed=0"),
        (["~data"], "~data: train needs data; leave it in"),
        (["model=timm"], "model.backbone.name: give it a value, such as model.backbone.name=resnet18 or model."),
        (["+stages={a:{training:{ema:???}}}"], "training.ema: no value; give training.ema=..."),
    ],
)
def test_a_value_that_is_missing(refused: Refused, tmp_path: Path, overrides: list[str], expected: str) -> None:
    assert expected in refused(*overrides)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize(
    ("overrides", "text", "expected"),
    [
        (["loss=mine"], "", "error: loss=mine: my_conf/loss/mine.yaml has no _target_, which names the class to build"),
        (["~loss._target_"], "", "error: loss: has no _target_, which names the class to build"),
        (["loss=mine"], "margin: [1, 2\nscale: 3\n", "my_conf/loss/mine.yaml:2:6: expected ',' or ']', but got ':'"),
    ],
)
def test_a_file_of_the_users_own_that_makes_no_loss(
    refused: Refused, tmp_path: Path, overrides: list[str], text: str, expected: str
) -> None:
    path = tmp_path / "my_conf" / "loss" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert expected in refused("hydra.searchpath=[my_conf]", *overrides)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize("logger", ["tensorboard", "wandb"])
def test_a_logger_that_is_not_installed(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logger: str
) -> None:
    monkeypatch.setattr("dml.run.loop.find_spec", lambda _: None)
    assert f"logger={logger}: not installed; pip install 'dml-retrieval[{logger}]'" in refused(f"logger={logger}")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["~transform", "transform.size=112"], "transform: the configuration has no transform, so nothing"),
        (["trainer.precision=fp16"], "; is it 16-mixed?"),
        (["evaluation.recall_at=5"], "evaluation.recall_at=5: must be a list, such as 'evaluation.recall_at=[5]'"),
        (["model.heads=H"], "model.heads=H: must be a list, such as 'model.heads=[H]'"),
        (["evaluation.report=true"], "evaluation.report=true: must be a mapping or null"),
        (["seed=4294967296"], "seed=4294967296: must be a whole number, 0 or more and below 4294967296"),
        (["transform=rll", "transform.size=336"], "transform.test crops 336 of 256 pixels, and frames each image in"),
        (["training.init=nowhere.ckpt"], "training.init=nowhere.ckpt: no such file; a checkpoint of another run"),
    ],
)
def test_the_value_that_is_meant_is_named(refused: Refused, overrides: list[str], expected: str) -> None:
    assert expected in refused(*overrides)


def test_a_test_needs_no_loss_but_a_checkpoint(refused: Refused, tmp_path: Path) -> None:
    assert "no such file" in refused("~loss", f"checkpoint={tmp_path / 'none'}", command="evaluate")
    for value in ([], ["checkpoint="]):
        assert "checkpoint: give it a value, such as checkpoint=" in refused(*value, command="evaluate")


def test_preparing_needs_nothing_but_a_data_set(refused: Refused, tmp_path: Path) -> None:
    nowhere = ["dataset=folder", f"dataset.root={tmp_path / 'none'}"]
    assert "no such folder" in refused("~loss", "~model", "~transform", *nowhere, command="prepare")
    assert "~data: prepare needs data" in refused("~data", *nowhere, command="prepare")


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ("folder", "dataset.root: no value; give dataset.root=FOLDER, the folder of your own images"),
        ("csv", "dataset.root: no value; give dataset.root=FILE, the path of a .csv file of your own"),
        ("sop", "dataset.root: no value; give dataset.root=FOLDER, the folder of Stanford Online Products"),
    ],
)
def test_a_data_set_without_a_root(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dataset: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in refused(f"dataset={dataset}")
    assert not list(tmp_path.iterdir())


def test_the_folder_that_is_meant_is_named(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos.csv").touch()
    line = refused("dataset=folder", f"dataset.root={tmp_path / 'photo'}")
    assert f"photo: no such folder, but there is {tmp_path / 'photos'}; give" in line
    line = refused("dataset=csv", f"dataset.root={tmp_path / 'photo.csv'}")
    assert f"photo.csv: no such file, but there is {tmp_path / 'photos.csv'}; give" in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--loss=triplet"], "--loss=triplet: no such option; loss=triplet, without hyphens, sets a value"),
        (["--epochs", "10"], "--epochs: no such option; values are given as KEY=VALUE"),
        (["--max-steps=3"], "max_steps=3, without hyphens, sets a value"),
        (["--"], "--: no such option; values are given as"),
        (["-m", "sweep=optuna", "loss=glob(*)"], "loss=glob(*): sweep=optuna takes choice(A,B)"),
    ],
)
def test_an_option_that_hydra_does_not_have(refused: Refused, arguments: list[str], expected: str) -> None:
    assert expected in refused(*arguments)


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("hydra.run.dir=", "hydra.run.dir=: names no folder; hydra.run.dir=. is the current one, and without"),
        ("hydra.run.dir=null", "hydra.run.dir=null: names no folder; hydra.run.dir=. is the current one"),
        ("hydra.sweep.dir=''", "hydra.sweep.dir='': names no folder; hydra.sweep.dir=. is the current one"),
        ("'loss=rll'", "'loss=rll': quotes around the whole argument; without them it is loss=rll"),
    ],
)
def test_what_an_unset_variable_or_a_quote_too_many_leaves(
    refused: Refused, tmp_path: Path, argument: str, expected: str
) -> None:
    assert expected in refused(argument)
    assert not list(tmp_path.iterdir())


def test_a_sweep_may_be_asked_for_behind_an_override(refused: Refused) -> None:
    assert "loss=trplet: no such choice" in refused("seed=1", "--multirun", "loss=rll,trplet")
