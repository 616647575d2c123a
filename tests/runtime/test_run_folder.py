import json
import math
import os
import re
from pathlib import Path

import pytest

from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder, RunState, configuration_id, folders_below, newest_runs

CONFIG = {"seed": 1, "optimizer": {"lr": 1e-5}}
HYDRA = "hydra: {runtime: {choices: {loss: rll, experiment: null, hydra/launcher: basic}}}\n"


def begun(path: Path, config: str = "seed: 1\noptimizer: {lr: 1.0e-05}\nresume: null\n") -> RunFolder:
    folder = RunFolder(path)
    folder.write_configuration(config, HYDRA, "- seed=1\n")
    return folder


def test_what_was_started(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    assert folder.config == CONFIG  # how it is run is no part of it
    assert folder.overrides == ["seed=1"]
    assert folder.choices == {"loss": "rll", "experiment": None}


def test_the_states_of_a_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.state == RunState.NEW
    with folder.hold():
        begun(folder.path)
    assert folder.state == RunState.INTERRUPTED
    folder.write_metrics({"recall": 0.5, "configuration": configuration_id(CONFIG)})
    assert folder.state == RunState.FINISHED
    # gone on with, with another value, and killed: the old metrics are not those of this configuration
    assert folder.config["seed"] == 1
    folder.write_configuration("seed: 2\n", HYDRA, "- seed=2\n")
    assert (folder.config, folder.overrides) == ({"seed": 2}, ["seed=2"])
    assert folder.state == RunState.INTERRUPTED
    folder.write_metrics({"recall": 0.5, "configuration": configuration_id({"seed": 2, "debug": True})})
    assert folder.state == RunState.FINISHED


def test_a_held_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    with RunFolder(tmp_path).hold(), pytest.raises(InputError) as refused, RunFolder(tmp_path).hold():
        pass
    line = str(refused.value)
    assert line.startswith(f"{tmp_path}: process ")
    assert line.endswith(f" is training this run; resume={tmp_path} goes on with it after its end")


def test_holding_a_folder_deletes_what_a_killed_process_was_writing(tmp_path: Path) -> None:
    names = ("checkpoints/.last.ckpt.4194305-0123abcd.partial", ".metrics.json.4194305-0123abcd.partial")
    (tmp_path / "checkpoints").mkdir()
    for name in names:
        (tmp_path / name).touch()
    with RunFolder(tmp_path).hold():
        assert not any((tmp_path / name).exists() for name in names)


@pytest.mark.parametrize(
    "name", [".lock", "train.log", "metrics.json", "metrics.csv", "checkpoints", "checkpoints/last.ckpt", ".hydra"]
)
def test_a_link_in_the_place_of_what_a_run_writes_is_refused(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    for target in ("nowhere", "file"):
        (tmp_path / "file").write_text("a user's")
        (run / name).symlink_to(tmp_path / target)
        with pytest.raises(InputError, match=f"/{re.escape(name)}: a link"), RunFolder(run).hold():
            pass
        (run / name).unlink()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "file"}
    assert (tmp_path / "file").read_text() == "a user's"


def test_an_evaluation_does_not_follow_the_link_of_its_runs_folder(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "evaluations").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="/evaluations: a link"), RunFolder(tmp_path / "evaluations" / "best").hold():
        pass
    assert not any((tmp_path / "outside").iterdir())


def test_the_folder_itself_and_what_is_a_users_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "photos").symlink_to(tmp_path)
    with RunFolder(tmp_path / "run").hold():
        assert (tmp_path / "disk" / ".lock").exists()


def test_metrics_that_are_no_number_are_null_in_the_file(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.write_metrics({"recall": 0.5, "fnmr": math.nan})
    text = folder.metrics_file.read_text()
    assert '"fnmr": null' in text
    assert "NaN" not in text  # which other readers of JSON refuse
    assert folder.metrics() == {"recall": 0.5, "fnmr": pytest.approx(math.nan, nan_ok=True)}


def test_raw_metrics_are_those_of_a_configuration(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.raw_metrics("a") is None
    folder.write_raw_metrics({"level0/recall@1": 0.25}, "a")
    assert folder.raw_metrics("a") == {"level0/recall@1": 0.25}
    assert folder.raw_metrics("b") is None


def test_the_history(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.history() == []
    folder.history_file.write_text("step,loss,val/h_ap\n1,2.0,\n2,1.0,0.25\n")
    assert folder.history() == [{"step": "1", "loss": "2.0"}, {"step": "2", "loss": "1.0", "val/h_ap": "0.25"}]
    assert folder.values("val/h_ap") == {2: 0.25}
    assert folder.values("val/ndcg") == {}


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for content in ("", "{", "[1]", "\x00", "[" * 100_000):
        folder.metrics_file.write_text(content)
        with pytest.raises(InputError, match=r"metrics\.json: "):
            folder.metrics()
    folder.write_configuration("[" * 5_000, "{}", "[]")
    with pytest.raises(InputError, match=r"config\.yaml: damaged"):
        _ = folder.config


def test_the_newest_run_is_the_one_that_was_started_last(tmp_path: Path) -> None:
    for age, name in enumerate(("a", "b/c", "b/c/evaluations/d")):
        config = begun(tmp_path / name, "checkpoint: x.ckpt\n" if "evaluations" in name else "seed: 1\n").config_file
        os.utime(config, (1000 + age, 1000 + age))
    assert len(folders_below(tmp_path)) == 3
    assert [run.path for run in newest_runs(tmp_path)] == [tmp_path / "b" / "c", tmp_path / "a"]
    assert list(newest_runs(tmp_path / "none")) == []


def test_a_configuration_is_known_by_its_values() -> None:
    config, same = {"a": 1, "b": {"c": [1, None]}}, json.loads('{"b": {"c": [1, null]}, "a": 1, "resume": "x"}')
    assert configuration_id(config) == configuration_id(same)
    assert configuration_id(config) != configuration_id({"a": 1, "b": {"c": [2, None]}})
