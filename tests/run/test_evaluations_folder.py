"""The folders of evaluations: below the run that they judge, and never counted as runs."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Refused
from omegaconf import OmegaConf

from dml.run.config_folders import evaluations_folder
from dml.runtime.run_folder import RunFolder


def make_run(folder: Path, **config: Any) -> RunFolder:
    """Make the folder of a finished run, or of an evaluation with ``checkpoint=...``."""
    run = RunFolder(folder)
    run.write_configuration(OmegaConf.to_yaml({"seed": 0, **config}), "{}", "[]")
    run.write_metrics({"level0/recall@1": 0.5})
    return run


def choose_folder(checkpoint: str) -> str:
    return evaluations_folder("other", _root_=OmegaConf.create({"checkpoint": checkpoint}))


def test_an_evaluation_is_below_the_run_that_wrote_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert choose_folder("run/checkpoints/best.ckpt") == "run/evaluations"
    assert choose_folder(f"{run.path}/copy.ckpt") == str(run.evaluations_folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert choose_folder("~/run/checkpoints/best.ckpt") == str(run.evaluations_folder)
    assert choose_folder("copy.ckpt") == "other"
    assert choose_folder("???") == "other"
    (tmp_path / "bare" / "checkpoints").mkdir(parents=True)  # .hydra/ was deleted
    (tmp_path / "bare" / "checkpoints" / "last.ckpt").touch()
    monkeypatch.chdir(tmp_path / "bare" / "checkpoints")
    assert choose_folder("last.ckpt") == "../evaluations"
    evaluation = make_run(run.evaluations_folder / "1", checkpoint="best.ckpt")
    assert choose_folder(str(evaluation.path / "best.ckpt")) == "other"


def test_a_run_leaves_what_its_evaluations_are_writing(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    make_run(run.evaluations_folder / "1", checkpoint="best.ckpt")
    for folder in (run.path, run.evaluations_folder / "1"):
        (folder / ".metrics.json.4194305-0123abcd.partial").touch()
    with run.hold():
        assert [path.parent.name for path in run.path.rglob("*.partial")] == ["1"]


def test_an_evaluation_is_not_resumed(refused: Refused, tmp_path: Path) -> None:
    make_run(tmp_path, checkpoint="best.ckpt")
    assert refused(f"resume={tmp_path}") == (
        f"error: resume={tmp_path}: a test of a checkpoint, which has no training to go on with"
    )
