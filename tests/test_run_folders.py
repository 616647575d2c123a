"""What runs leave in their folders, and whose they are, through the command line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import ONE_HEAD, Here, Refused
from forks import ForkedScript
from pytorch_lightning.callbacks import Timer
from runs import assert_same_run, kill_at, last, metrics, train

from dml.report.comparison import find_unfinished
from dml.runtime.run_folder import RunFolder, RunState
from dml.training.embedders import RawFeatures


@pytest.fixture(scope="module")
def short(small_emoji: Path) -> list[str]:
    """The arguments of a run of a step."""
    return [
        f"dataset.root={small_emoji}",
        *ONE_HEAD,
        "evaluation.raw=true",
        "scheduler=constant",
        "trainer.max_steps=1",
    ]


@pytest.fixture(scope="module")
def finished(short: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("finished") / "run", *short)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_runs_begun_in_the_same_second_have_a_folder_each(small_emoji: Path, tmp_path: Path) -> None:
    same = [f"dataset.root={small_emoji}", *ONE_HEAD, "trainer.max_steps=1"]
    same += [f"hydra.run.dir='${{new_folder:{tmp_path}/runs/now}}'"]
    started = [ForkedScript("train.py", *same, f"seed={seed}") for seed in range(2)]
    assert [script.finish().returncode for script in started] == [0, 0]
    folders = [RunFolder(path) for path in sorted((tmp_path / "runs").iterdir())]
    assert [folder.path.name for folder in folders] == ["now", "now_2"]
    assert {folder.config["seed"] for folder in folders} == {0, 1}
    assert all(folder.state == RunState.FINISHED for folder in folders)


def test_a_run_under_way_is_not_trained_twice(refused: Refused, short: list[str], run: Path) -> None:
    written = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    with RunFolder(run).hold():
        for given in ([f"resume={run}", "trainer.max_steps=4"], [*short, f"hydra.run.dir={run}"]):
            line = refused(*given)
            assert line.startswith(f"error: {run}: process ")
            assert "is training this run" in line
    assert {path: path.read_bytes() for path in written} == written


def test_a_folder_that_holds_a_run_is_not_begun_anew(refused: Refused, short: list[str], run: Path) -> None:
    assert f"resume={run} goes on with it" in refused(*short, f"hydra.run.dir={run}")
    shutil.rmtree(run / "checkpoints")
    assert "holds a run already" in refused(*short, f"hydra.run.dir={run}")


def test_a_finished_run_resumed_with_other_values_and_killed_is_not_finished(
    here: Here, small_emoji: Path, tmp_path: Path
) -> None:
    arguments = [f"dataset.root={small_emoji}", *ONE_HEAD, "scheduler=constant", "trainer.val_check_interval=2"]
    whole, folder = tmp_path / "whole", tmp_path / "folder"
    here("train", *arguments, "trainer.max_steps=4", f"hydra.run.dir={whole}")
    here("train", *arguments, "trainer.max_steps=2", f"hydra.run.dir={folder}")
    assert RunFolder(folder).state == RunState.FINISHED
    kill_at("before last.ckpt is written", 1, f"resume={folder}", "trainer.max_steps=4")
    assert RunFolder(folder).state == RunState.INTERRUPTED
    assert find_unfinished([folder]) == [folder]
    here("train", f"resume={folder}")  # with the new values
    assert_same_run(whole, folder)
    assert metrics(folder) == metrics(whole)


TAKEN = [
    *("checkpoints.every_n_steps=9", "checkpoints.patience=3", "trainer.max_time=00:12:00:00", "logger=csv"),
    *("trainer.log_every_n_steps=5", "trainer.devices=auto", "trainer.accelerator=cpu", "data.eval_batch_size=7"),
    *("evaluation.recall_at=[1]", "loss.margin=0.4"),  # the latter is as it was
]


def test_a_resumed_run_goes_on_as_it_began(refused: Refused, run: Path, here: Here) -> None:
    for override in ("optimizer=sgd", "loss.margin=0.1"):  # others: run/test_stored.py
        line = refused(f"resume={run}", override, "trainer.max_steps=2")
        assert line.startswith(f"error: {override.partition('=')[0]}"), line
        assert f"training.init={run / 'checkpoints' / 'last.ckpt'}" in line
        assert RunFolder(run).state == RunState.FINISHED
    assert "optimizer.lr=0.1: the run has 1 steps already" in refused(f"resume={run}", "optimizer.lr=0.1")
    here("train", f"resume={run}", "trainer.max_steps=2", "optimizer.lr=0.1")
    assert last(run)["global_step"] == 2
    assert last(run)["run"]["config"]["optimizer"]["lr"] == 0.1
    line = refused(f"resume={run}", "trainer.max_steps=1")
    assert "trainer.max_steps=1: the run has 2 steps already" in line
    here("train", f"resume={run}", *TAKEN)  # the test alone
    assert "level0/recall@4" not in metrics(run)


def test_a_finished_stage_stays_as_it_is(here: Here, refused: Refused, small_emoji: Path, tmp_path: Path) -> None:
    stages = "+stages={a:{trainer:{max_steps:1}},b:{trainer:{max_steps:2}}}"
    here("train", f"dataset.root={small_emoji}", *ONE_HEAD, stages, f"hydra.run.dir={tmp_path}")
    line = refused(f"resume={tmp_path}", "stages.a.trainer.max_steps=9")
    assert "stages.a: the run has finished this stage; a new run can have another one" in line
    here("train", f"resume={tmp_path}", "stages.b.trainer.max_steps=3")
    assert last(tmp_path)["global_step"] == 3


@pytest.mark.parametrize("key", ["limit_val_batches", "limit_test_batches"])
def test_a_share_of_less_than_a_batch_is_told_before_the_training(
    refused: Refused, small_emoji: Path, tmp_path: Path, key: str
) -> None:
    line = refused(f"dataset.root={small_emoji}", *ONE_HEAD, f"trainer.{key}=0.0001", f"hydra.run.dir={tmp_path}")
    assert f"trainer.{key}=0.0001: less than one of the 1 batches; 1 or more, or a whole number of batches" in line


def test_without_a_validation_the_last_step_is_logged_tested_and_named(
    here: Here, small_emoji: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    intervals = ["trainer.val_check_interval=null", "trainer.log_every_n_steps=1000", "trainer.max_steps=3"]
    here("train", f"dataset.root={small_emoji}", *ONE_HEAD, *intervals, f"hydra.run.dir={tmp_path}")
    (row,) = RunFolder(tmp_path).history()
    assert row["step"] == "3"
    assert float(row["loss"]) >= 0
    assert metrics(tmp_path)["selection"] == "last"
    said = " ".join(capfd.readouterr().out.split())
    assert "step 3, the last one" in said


REPORTED = [*ONE_HEAD, "trainer.max_steps=1", "evaluation.report={neighbors:2,map:false,seed:0}"]
REPORTED += ["evaluation.sheet={queries:2,neighbors:2,seed:0}"]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "point",
    [
        "before retrieval.png is replaced",
        "before per_query.parquet is replaced",
        "before report.html is replaced",
        "before the loggers get the final metrics",
        "before metrics.json is replaced",
    ],
)
def test_a_run_is_finished_when_all_that_it_leaves_is_there(
    here: Here, small_emoji: Path, tmp_path: Path, point: str
) -> None:
    kill_at(point, 1, f"dataset.root={small_emoji}", *REPORTED, f"hydra.run.dir={tmp_path}")
    folder = RunFolder(tmp_path)
    assert folder.state == RunState.INTERRUPTED
    here("train", f"resume={tmp_path}")
    assert folder.state == RunState.FINISHED
    files = [folder.picture_file, folder.queries_file, folder.report_file]
    assert max(file.stat().st_mtime_ns for file in files) <= folder.metrics_file.stat().st_mtime_ns


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "point", ["before splits.json is written", "before splits.json is replaced", "after splits.json is replaced"]
)
def test_a_run_that_is_killed_before_its_configuration_is_written_begins_again(
    here: Here, small_emoji: Path, tmp_path: Path, point: str
) -> None:
    arguments = [f"dataset.root={small_emoji}", *ONE_HEAD, "trainer.max_steps=1", f"hydra.run.dir={tmp_path}"]
    kill_at(point, 1, *arguments)
    folder = RunFolder(tmp_path)
    assert folder.state == RunState.NEW
    assert folder.splits_file.exists() == point.startswith("after")
    here("train", *arguments)
    assert folder.state == RunState.FINISHED
    assert set(folder.splits() or {}) == {"train", "val", "test"}
    assert not list(tmp_path.rglob("*.partial"))


def test_resuming_finds_the_raw_metrics_that_it_had(here: Here, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = metrics(run)["raw/level0/recall@1"]
    monkeypatch.delattr(RawFeatures, "embed_images")
    here("train", f"resume={run}", "trainer.max_steps=2")
    assert metrics(run)["raw/level0/recall@1"] == before


ACCUMULATED = [*ONE_HEAD, "trainer.accumulate_grad_batches=3", "trainer.max_steps=5", "trainer.val_check_interval=2"]
ACCUMULATED += ["checkpoints.every_n_steps=1"]


@pytest.fixture(scope="module")
def accumulated(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("accumulated") / "run", f"dataset.root={small_emoji}", *ACCUMULATED)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("point", "occurrence"),
    [
        ("after last.ckpt is replaced", 1),
        ("after last.ckpt is replaced", 3),
        ("before last.ckpt is written", 4),
        ("after best.ckpt is replaced", 1),
        ("after a validation is judged", 2),
    ],
)
def test_killed_under_accumulation_and_resumed_ends_bit_for_bit_the_same(
    here: Here, accumulated: Path, small_emoji: Path, tmp_path: Path, point: str, occurrence: int
) -> None:
    kill_at(point, occurrence, f"dataset.root={small_emoji}", *ACCUMULATED, f"hydra.run.dir={tmp_path}")
    here("train", f"resume={tmp_path}")
    assert_same_run(accumulated, tmp_path)


def test_an_early_end_is_tested_where_it_is(
    here: Here, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_in_the_middle_of_a_step(monkeypatch, Timer)
    arguments = [f"dataset.root={small_emoji}", *ACCUMULATED, "trainer.val_check_interval=null"]
    arguments += ["checkpoints.every_n_steps=100", "+trainer.max_time=00:01:00:00", f"hydra.run.dir={tmp_path}"]
    here("train", *arguments)
    assert last(tmp_path)["global_step"] == 2
    found = metrics(tmp_path)
    assert found["step"] == 2
    assert found["selection"] == "last"
    assert found["ended_early"] == "at step 2 of 5"
    weights = last(tmp_path)["state_dict"]
    # the same configuration ends there again; more time goes on
    here("train", f"resume={tmp_path}")
    assert all(torch.equal(weights[name], value) for name, value in last(tmp_path)["state_dict"].items())
    monkeypatch.undo()
    here("train", f"resume={tmp_path}", "trainer.max_time=00:02:00:00")
    assert metrics(tmp_path)["step"] == 5
    assert "ended_early" not in metrics(tmp_path)


def test_validations_that_are_no_better_end_a_training(
    here: Here, small_emoji: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"dataset.root={small_emoji}", *ONE_HEAD, "evaluation.metrics=[map@r]", "checkpoints.patience=2"]
    arguments += ["trainer.max_steps=8", "trainer.val_check_interval=1", "optimizer.lr=0", "training.ema=null"]
    here("train", *arguments, f"hydra.run.dir={tmp_path}")  # nothing is learned, so the first validation stays the best
    assert "at step 3: none of the last 2 validations was better" in capfd.readouterr().out
    assert last(tmp_path)["global_step"] == 3
    assert metrics(tmp_path)["step"] == 1
    assert metrics(tmp_path)["ended_early"] == "at step 3 of 8"
    here("train", f"resume={tmp_path}")  # it ends there again
    assert last(tmp_path)["global_step"] == 3
    assert metrics(tmp_path)["ended_early"] == "at step 3 of 8"
    # more patience goes on, and still counts from the best validation
    here("train", f"resume={tmp_path}", "checkpoints.patience=4")
    assert last(tmp_path)["global_step"] == 5
    here("train", f"resume={tmp_path}", "trainer.min_steps=7")  # patience is over long before
    assert last(tmp_path)["global_step"] == 7


def end_in_the_middle_of_a_step(monkeypatch: pytest.MonkeyPatch, timer: type) -> None:
    """Lets the time be over after the fourth batch, the first of the second step's three."""
    original: Callable[..., None] = timer.on_train_batch_end  # type: ignore[attr-defined]

    def on_train_batch_end(self: object, trainer: object, *arguments: object) -> None:
        original(self, trainer, *arguments)
        if arguments[-1] == 3:
            trainer.should_stop = True  # type: ignore[attr-defined]

    monkeypatch.setattr(timer, "on_train_batch_end", on_train_batch_end)
