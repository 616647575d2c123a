"""What happens before the first run of a sweep: searches that can't succeed end with one line, and leave nothing."""

import sys
from pathlib import Path

import pytest
from conftest import PLAIN, Here, Refused
from omegaconf import OmegaConf

from dml.commands.sweep_start import list_first_values

TRIED = ["-m", "sweep=optuna", *PLAIN, "hydra.sweeper.n_trials=2"]


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        ("checkpoints.monitor=foo", "checkpoints.monitor=foo: no metric that a validation has"),
        ("trainer.val_check_interval=null", "trainer.val_check_interval=null validates never, and the search"),
        ("dataset.root=/nowhere", "dataset.root=/nowhere: "),
        ("loss=glob(*)", "loss=glob(*): sweep=optuna takes choice(A,B), and no glob"),
        ("+model.pretraining={lr:1e-6}", "weights is 1e-06; give rates around it, such as"),
    ],
)
def test_a_search_is_checked_before_its_first_run(
    refused: Refused, tmp_path: Path, small_emoji: Path, monkeypatch: pytest.MonkeyPatch, mistake: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    root = [] if mistake.startswith("dataset.root") else [f"dataset.root={small_emoji}"]
    # one line alone: no run has said that it failed
    assert line in refused(*TRIED, *root, "loss.margin=interval(0.2,0.8)", mistake)
    assert not [*tmp_path.rglob("*")]


@pytest.mark.parametrize(("choice", "library"), [("sweep=optuna", "optuna"), ("launcher=joblib", "joblib")])
def test_a_library_that_is_missing_beside_its_plugin_is_told_before_the_first_run(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, library: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    line = refused("-m", choice, "seed=1,2", *PLAIN)
    assert line == f"error: {library}: not installed; pip install 'dml-retrieval[{library}]'"
    assert not [*tmp_path.rglob("*")]


def test_a_search_may_take_a_configuration_of_ones_own(
    refused: Refused, tmp_path: Path, small_emoji: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "my_conf" / "loss" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("_target_: dml.losses.RankedListLoss\nmargin: 0.3\n")
    monkeypatch.chdir(tmp_path)
    given = [f"dataset.root={small_emoji}", "hydra.searchpath=[my_conf]", "loss=mine", "loss.margin=interval(0.2,0.8)"]
    assert "checkpoints.monitor=foo: no metric that" in refused(*TRIED, *given, "checkpoints.monitor=foo")


def test_a_search_is_checked_at_its_first_point() -> None:
    task = ["loss=rll", "loss.margin=interval(0.2,0.8)", "seed=3,4", "a=tag(log,range(1,9))", "b=choice(x,y)", "~c"]
    params = {"optimizer.lr": "tag(log, interval(1e-4, 2e-3))"}
    hydra = OmegaConf.create({"sweeper": {"params": params}, "overrides": {"task": task}})
    assert list_first_values(hydra) == [
        "optimizer.lr=0.0001",
        "loss=rll",
        "loss.margin=0.2",
        "seed=3",
        "a=1",
        "b=x",
        "~c",
    ]
    hydra.sweeper.params = None
    assert list_first_values(hydra)[0] == "loss=rll"


def test_a_point_that_cannot_be_composed_counts_as_failed_and_the_search_goes_on(
    here: Here, capfd: pytest.CaptureFixture[str], tmp_path: Path, small_emoji: Path
) -> None:
    """Of the losses one alone has a margin, and it is the second; the sampler's seed proposes both."""
    searched = ["loss=proxy_nca,rll", "loss.margin=interval(0.2,0.8)", "optimizer.lr=5e-4", "hydra.sweeper.n_trials=4"]
    short = ["trainer.max_steps=1", "trainer.val_check_interval=1", f"hydra.sweep.dir={tmp_path}"]
    here("train", "-m", "sweep=optuna", f"dataset.root={small_emoji}", *PLAIN, *searched, *short)
    failed = [line for line in capfd.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert failed
    assert all("loss.margin: no such key" in line for line in failed)
    assert len([*tmp_path.glob("*/metrics.json")]) == 4 - len(failed)
    found = OmegaConf.to_container(OmegaConf.load(tmp_path / "optimization_results.yaml"))
    assert isinstance(found, dict)
    assert found["best_params"]["loss"] == "rll"
