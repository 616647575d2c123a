"""The benchmark of public data sets, as `make benchmark PRESET=smoke` runs it: small, on miniature trees."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import Here
from miniatures import MODULES, write_trees

import dml
from dml.runtime.run_folder import RunFolder
from dml.studies.runs import Plan, Run
from dml.studies.study_command import run_study

NETWORKS = ("resnet50", "dinov2_small", "dinov3_small", "siglip2_base")


@pytest.mark.thorough
def test_each_run_of_the_small_benchmark_leaves_a_model_with_its_card(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(plan: Plan, runs: Iterable[Run], purpose: str) -> bool:
        for run in {run.folder: run for run in runs if not run.is_finished}.values():
            here("train", *run.train_arguments(plan.data or Path()))
        return False

    monkeypatch.setattr(Plan, "train", train)
    write_trees(tmp_path / "data")
    options = ["benchmark", "run", "--preset", "smoke"]
    options += ["--data", str(tmp_path / "data"), "--outputs", str(tmp_path / "runs")]
    run_study([*options, "conditions=small_cnn", "rows=proxy_anchor"])
    run_study([*options, "datasets=cub200", "rows=rll"])

    trained = set()
    for checkpoint in tmp_path.glob("runs/**/best.ckpt"):
        folder = RunFolder.from_checkpoint(checkpoint)
        config = folder.config
        trained.add((config["dataset"]["name"], folder.choices["model"]))
        assert not folder.last_checkpoint.exists()
        card = (dml.load(folder.path).save_pretrained(tmp_path / "saved") / "README.md").read_text()
        for words in (f"trained on {config['dataset']['name']}", "validation", "level0/recall@1", "level0/map@r"):
            assert words in card
    assert trained == {*((name, "small_cnn") for name in MODULES), *(("cub200", name) for name in NETWORKS)}

    (page,) = tmp_path.glob("runs/smoke/benchmark-*.md")
    assert page.read_text().count("1 seed, ") == len(trained)
    shutil.rmtree(tmp_path / "runs")  # a gigabyte
    shutil.rmtree(tmp_path / "saved")
