"""A mistake leaves no folder behind, and a run shows its first line before it imports what takes seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PLAIN, ROOT, Refused
from omegaconf import OmegaConf

from dml.run.config_folders import new_folder
from dml.runtime.run_folder import RunFolder, remove_unused_folder


def test_a_mistake_leaves_no_folder(
    refused: Refused, tmp_path: Path, small_emoji: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused("dataset.root=/nowhere")
    run = [f"dataset.root={small_emoji}", *PLAIN, "model=small_cnn"]
    refused(*run, "loss.margin=abc", "hydra.run.dir=mine/run")  # a folder that the user names
    refused(*run, "scheduler.loss={attribute:marge,start:0,end:2}")  # found after the configuration is written
    assert not [*tmp_path.rglob("*")]
    (tmp_path / "outputs" / "emoji").mkdir(parents=True)
    refused("loss.margin=abc")
    assert [path.name for path in tmp_path.rglob("*")] == ["outputs", "emoji"]


def test_a_folder_that_the_user_made_stays(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    refused("loss.margin=abc", "hydra.run.dir=mine")
    assert (tmp_path / "mine").exists()


def test_only_new_folders_without_results_are_removed(tmp_path: Path) -> None:
    root = OmegaConf.create({"hydra": {"runtime": {"cwd": str(tmp_path)}}})
    OmegaConf.get_cache(root)["new_folder"] = {}
    folder = RunFolder(new_folder(str(tmp_path / "a" / "b"), _root_=root))
    (folder.path / "metrics.csv").touch()
    remove_unused_folder(folder.path)
    assert folder.history_file.exists()
    folder.history_file.unlink()
    (tmp_path / "a" / "c").mkdir()
    remove_unused_folder(folder.path)
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "c"]
    (tmp_path / "users").mkdir()
    remove_unused_folder(tmp_path / "users")
    assert (tmp_path / "users").exists()


@pytest.mark.pipeline
def test_the_first_line_comes_before_the_slow_imports(tmp_path: Path) -> None:
    script = (
        "import sys, runpy\n"
        "sys.modules['torch'] = None\n"  # its import is an error from here on
        f"sys.argv = ['train.py', 'loss=triplet', 'hydra.run.dir={tmp_path}']\n"
        f"runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.startswith("train    tf_efficientnet_lite0 with loss triplet on emoji; results in ")
    assert "torch" in done.stderr
