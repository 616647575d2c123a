"""The command ``dml compress``: of a run and of a saved model."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import PLAIN
from small_embedders import make_model

import dml
from dml.__main__ import dispatch
from dml.commands import main
from dml.inference import ImageEmbedder
from dml.inference.split_embeddings import build_evaluator, read_data_set


@pytest.fixture(scope="module")
def run(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compress") / "run"
    settings = [*PLAIN, "loss=matryoshka", "loss.sizes=[4,8]", "trainer.max_steps=1", "trainer.val_check_interval=1"]
    settings += ["evaluation.metrics=[recall,map@r]"]
    settings += ["evaluation.report={neighbors:3,map:false,seed:0}", f"dataset.root={small_emoji}"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["train.py", *settings, f"hydra.run.dir={folder}"])
        main("train")
    return folder


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.evaluation.compression.TIMED_SECONDS", 0.0)


def test_a_run_and_its_saved_model_have_the_digits_of_the_test(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["compress", str(run), "--prefixes", "4", "--workers", "0"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(run / "compression.json")
    assert any(line.startswith("| prefix4 | 12 | int8 | 12 |") for line in lines)
    values, metrics = (json.loads((run / f"{name}.json").read_text()) for name in ("compression", "metrics"))
    for name in ("level0/recall@1", "level0/map@r"):
        assert values[f"prefix8/float32/{name}"] == metrics[name]
    assert (values["split"], values["step"]) == ("test", metrics["step"])
    dispatch(["report", str(run)])
    page = (run / "report.html").read_text()
    assert "<h2>Smaller vectors</h2>" in page
    assert "binary+rescore" in page
    saved = dml.load(run).save_pretrained(tmp_path / "saved")
    dispatch(
        ["compress", str(saved), "--prefixes", "4", "--workers", "0", "--output", str(tmp_path / "new" / "small.json")]
    )
    again = json.loads((tmp_path / "new" / "small.json").read_text())
    assert {key for key in again if key.endswith("map@r")} == {key for key in values if key.endswith("map@r")}
    assert all(again[key] == values[key] for key in values if key.endswith(("map@r", "recall@1", "bytes")))
    assert not (saved / "compression.json").exists()


def test_a_student_searches_the_vectors_of_its_teacher(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = dml.load(run)
    with torch.no_grad():
        for parameter in teacher.model.parameters():
            parameter += (
                0.5 * parameter.std() * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
            )
    teacher = ImageEmbedder(teacher.model, teacher.settings)
    place = teacher.save_pretrained(tmp_path / "teacher")
    options = ["--workers", "0", "--prefixes", "8", "--output", str(tmp_path / "small.json")]
    dispatch(["compress", str(run), "--gallery", str(place), *options])
    lines = capsys.readouterr().out.splitlines()
    student, values = dml.load(run), json.loads((tmp_path / "small.json").read_text())
    for model in (student, teacher):
        assert sum(line.startswith(f"model {model.fingerprint}: ") and "images/s" in line for line in lines) == 2
    assert values["gallery_fingerprint"] == teacher.fingerprint
    settings, table = read_data_set(student)
    part = table.select_evaluated("test")
    queries, gallery = (model.embed(part.paths.tolist()) for model in (student, teacher))
    expected = build_evaluator(settings, table, part).evaluate(queries, gallery=gallery).metrics
    for name in ("level0/recall@1", "level0/map@r"):
        assert values[f"asymmetric/float32/{name}"] == pytest.approx(expected[name], abs=1e-6)
        assert expected[name] != values[f"prefix8/float32/{name}"]
    assert any(line.startswith("| asymmetric | 24 | int8 | 24 |") for line in lines)


def test_refuses_in_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = make_model()
    config = {**plain.settings.config, "evaluation": {"geometry": {"curvature": 0.1, "clip": 2.3}}}
    ball = ImageEmbedder(plain.model, replace(plain.settings, config=config)).save_pretrained(tmp_path / "ball")
    reader = {"_target_": "os.system", "command": "true"}
    data = {**plain.settings.config["data"], "max_list_bytes": 1000}
    config = {**plain.settings.config, "dataset": {"name": "squares", "reader": reader}, "data": data}
    foreign = ImageEmbedder(plain.model, replace(plain.settings, config=config)).save_pretrained(tmp_path / "foreign")
    copied = tmp_path / "a" / "copied.ckpt"
    copied.parent.mkdir()
    copied.touch()
    for arguments, line in (
        ([str(ball)], "compared by poincare (curvature 0.1) distance; dml compress measures"),
        (
            [str(run), "--gallery", str(ball)],
            "its vectors have 8 dimensions, compared by poincare (curvature 0.1); those",
        ),
        ([str(run), "--prefixes", "9"], "--prefixes 9: the embedding of a head has 8 dimensions at most"),
        ([str(foreign)], "dataset.reader._target_=os.system is not known and could run any code"),
        ([str(run), "--split", "tset"], "argument --split: invalid choice"),
        ([str(copied)], "copied.ckpt: a checkpoint outside of a run's folder; --output FILE"),
        ([str(tmp_path / "nothere")], "nothere: no such file or folder"),
    ):
        with pytest.raises(SystemExit) as stopped:
            dispatch(["compress", *arguments])
        assert stopped.value.code == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert line.removeprefix("argument ") in error
