"""What a run stores, what a command takes of it, and what a file may not say."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import configurations
import hydra
import pytest
import yaml
from conftest import ROOT
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from dml.run.stored import (
    NEW_VALUES,
    StoredRun,
    check_foreign,
    check_new_values,
    extract_stage,
    offer,
    plain_config,
    read_stored_run,
)
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder, configuration_id

pytestmark = pytest.mark.pipeline


def compose(name: str, words: Sequence[str]) -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return hydra.compose(name, overrides=[*words])


def compose_new(*words: str) -> Any:
    return configurations.compose(*words)


def goes_on(stored: dict[str, Any], *words: str, command: str = "train") -> Any:
    """The configuration of a command that goes on with stored values."""
    source = "checkpoint=some.ckpt" if command == "evaluate" else "resume=some/run"
    given = [source, *words]
    return compose(offer(command, StoredRun([], stored), given), given)


def changed(stored: dict[str, Any], *words: str, command: str = "train") -> dict[str, Any]:
    """The values of that configuration that aren't the stored ones."""
    now, then = flat(plain_config(goes_on(stored, *words, command=command))), flat(stored)
    return {key: now.get(key) for key in now.keys() | then.keys() if now.get(key) != then.get(key) and key != "split"}


RUN = [
    "loss=rll",
    "loss.margin=0.3",
    "dataset=sop",
    "transform=emoji",
    "optimizer=sgd",
    "trainer.max_steps=6",
    "seed=5",
]


@pytest.mark.parametrize("experiment", ["rll/I/rll_simpler", "lns/4.1/iterations", "happier/2/sum_tl_sh_dyml_vehicle"])
def test_a_run_goes_on_with_its_values_whatever_conf_says_now(experiment: str) -> None:
    stored = plain_config(compose_new(f"experiment={experiment}", "trainer=ddp", "trainer.devices=2"))
    assert changed(stored) == {}
    assert changed(stored, command="evaluate") == {}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["trainer.max_steps=9"], {"trainer.max_steps": 9}),
        (["+trainer.max_depth=1"], {"trainer.max_depth": 1}),
        (["loss=rll"], {"loss.margin": 0.4}),
        (["logger=wandb", "logger.loggers.wandb.project=x"], None),
    ],
)
def test_the_command_line_changes_what_it_names(words: list[str], values: dict[str, Any] | None) -> None:
    found = changed(plain_config(compose_new(*RUN)), *words)
    assert found == values if values is not None else {key.split(".")[0] for key in found} == {"logger"}


def test_a_test_of_other_data_keeps_the_transform_of_the_run() -> None:
    """The other data set would choose transform=imagenet."""
    stored = plain_config(compose_new(*RUN))
    assert compose_new("dataset=cub200").transform != goes_on(stored, "dataset=cub200").transform
    assert {key.split(".")[0] for key in changed(stored, "dataset=cub200", command="evaluate")} == {"dataset"}
    assert goes_on(stored, "dataset=emoji", "transform=rll", command="evaluate").transform.size == 224


@pytest.mark.parametrize("trainer", ["default", "ddp", "slurm"])
def test_another_trainer_changes_the_processes_of_a_resumed_run_alone(trainer: str) -> None:
    training = ["trainer.max_steps=6", "trainer.gradient_clip_val=5", "trainer.precision=bf16-mixed"]
    other = ["trainer=ddp" if trainer == "default" else "trainer=default", "trainer.sync_batchnorm=true"]
    resumed = goes_on(plain_config(compose_new(*training, *other)), f"trainer={trainer}", "trainer.max_time=null")
    assert resumed.trainer == compose_new(*training, f"trainer={trainer}").trainer


def test_the_environment_is_stored_by_its_values_but_for_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "0.5")
    monkeypatch.delenv("UNSET", raising=False)
    config = {
        "lr": "${oc.decode:${oc.env:LR}}",
        "head": {"lr": "${lr}", "size": "${resize_for:${oc.decode:${ oc.env:SIZE,224}}}"},
        "roots": ["${oc.env:LR}/x", {"missing": "???", "unset": "${oc.env:UNSET}"}, "${oc.decode:${oc.env:L,[1]}}"],
        "name": "${hydra:runtime.choices.loss}",
        "logger": {"key": "${oc.env:LR}"},
        "resume": "${oc.env:LR}",
    }
    assert plain_config(OmegaConf.create(config)) == {
        "lr": 0.5,
        "head": {"lr": "${lr}", "size": 256},
        "roots": ["0.5/x", {"missing": "???", "unset": "${oc.env:UNSET}"}, [1]],
        "name": "${hydra:runtime.choices.loss}",
        "logger": {"key": "${oc.env:LR}"},
    }


def test_a_stored_call_counts_as_missing() -> None:
    values = {"a": "${oc.env:HOME}", "b": ["${c}", "${new_folder:/tmp/x}"], "c": 3, "stages": {}}
    opened = extract_stage({"run": {"config": values, "overrides": []}}).config
    assert OmegaConf.is_missing(opened, "a")
    assert OmegaConf.is_missing(opened.b, 1)
    assert opened.b[0] == 3


def test_runs_that_load_and_log_in_another_way_are_the_same() -> None:
    stored = plain_config(compose_new(*RUN))
    same = ["data.num_workers=0", "data.cache=/ssd", "trainer.devices=2", "logger=tensorboard", "trust=true"]
    assert configuration_id(plain_config(compose_new(*RUN, *same))) == configuration_id(stored)
    others = ["trainer.max_steps=7", "dataset.root=b", "seed=6", "data.background=black", "loss.margin=0.2"]
    assert len({configuration_id(plain_config(compose_new(*RUN, other))) for other in others}) == len(others)


@pytest.mark.parametrize("word", ["loss.margin=0.1", "training.init=a", "evaluation.selection=test", "seed=6"])
def test_a_resumed_run_takes_no_other_values(word: str) -> None:
    stored = StoredRun([], plain_config(compose_new(*RUN)))
    with pytest.raises(InputError, match=rf"^{word}: the run has .*training\.init="):
        check_new_values(plain_config(goes_on(stored.config, word)), RunFolder("run"), stored)


def test_a_resumed_run_takes_new_values_of_the_listed_keys() -> None:
    stored = StoredRun([], plain_config(compose_new(*RUN)))
    words = ["data.cache=x", "evaluation.recall_at=[1]", "optimizer.lr=1", "trainer.max_epochs=3", "loss.margin=0.3"]
    check_new_values(plain_config(goes_on(stored.config, *words)), RunFolder("run"), stored)


def test_the_listed_keys_exist() -> None:
    config = compose_new(*RUN)
    assert [key for key in NEW_VALUES if OmegaConf.select(config, key, default="none") == "none"] == []


def test_before_there_is_a_checkpoint_the_folder_holds_the_values(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_configuration(yaml.safe_dump({"seed": 1, "resume": None}), "{}", "[seed=1, resume=x]")
    assert read_stored_run(run) == StoredRun(["seed=1"], {"seed": 1})


def refusal(stored: dict[str, Any], *words: str, command: str = "train") -> str:
    """What is said of a file that holds the values, "" if they are taken."""
    config = OmegaConf.create(plain_config(compose_new()))
    for key, value in stored.items():
        OmegaConf.update(config, key, value, force_add=True)
    values: Any = OmegaConf.to_container(config, resolve=False)
    source = "checkpoint=some.ckpt" if command == "evaluate" else "resume=some/run"
    try:
        check_foreign(command, goes_on(values, *words, command=command), [source, *words])
    except InputError as error:
        return str(error)
    return ""


def test_the_projects_own_choices_need_no_trust() -> None:  # run/test_building.py knows the names of all
    stored = plain_config(compose_new("loss=happier", "trainer=ddp", "model=timm", "model.backbone.name=x"))
    assert refusal(stored) == ""


LOAD = {"_target_": "torch.load", "weights_only": False, "f": "evil.pickle"}


FORBIDDEN: dict[str, Any] = {
    "transform.test.x": [LOAD, [{"a": LOAD}]],
    "model.x": {"_target_": "os.system", "_partial_": True},
    # behind interpolations
    "dataset": {"x": "torch.load", "m": "torch", "evil": LOAD, "d": "$"},
    "transform.test._target_": "${dataset.x}",
    "model.a._target_": "${dataset.m}.load",
    "model.b": "${dataset.evil}",
    "model.c": "${dataset.d}{oc.env:HOME}",
    # a known one that lends its module's imports
    "model._target_": "dml.models.networks.torch.load",
    # in a stage
    "stages": {"a": {}, "b": {"dataset": {"reader": LOAD}}, "c": {"model": {"_target_": "os.remove"}}},
    # places that are written to
    "trainer.default_root_dir": "/home/x",
}
"""What a file may not say."""


def test_what_a_file_may_not_say_is_refused_by_its_keys() -> None:
    line = refusal(FORBIDDEN)
    found = re.findall(r"([\w.]+=\S+?)(?:, | comes from this file)", line)
    assert {*found} >= {
        "transform.test.x.0._target_=torch.load",
        "transform.test.x.1.0.a._target_=torch.load",
        "model.x._target_=os.system",
        "transform.test._target_=torch.load",
        "model.a._target_=torch.load",
        "model.b._target_=torch.load",
        "model.c=${oc.env:HOME}",
        "model._target_=dml.models.networks.torch.load",
        "dataset.reader._target_=torch.load",
        "model._target_=os.remove",
        "trainer.default_root_dir=/home/x",
    }
    assert line.endswith("give it here, or trust=true if you trust this file")


def test_a_test_refuses_it_too() -> None:
    for stored in ({"transform.test.x": LOAD}, {"stages": {"s": {"model": {"_target_": "os.system"}}}}):
        assert "._target_=" in refusal(stored, command="evaluate")
    assert refusal({"transform.test.x": LOAD}, "trust=true", command="evaluate") == ""


def test_a_training_writes_into_no_cache_of_a_file() -> None:
    assert "data.cache=/home/x comes from this file" in refusal({"data.cache": "/home/x"})
    assert refusal({"data.cache": "/home/x"}, command="evaluate") == ""  # a test only reads there


def test_a_logger_of_a_file_sends_nothing() -> None:
    stored = {"logger.loggers": {"wandb": {"_target_": "dml.training.loggers.RunFolderWandbLogger", "entity": "evil"}}}
    assert "logger.loggers.wandb._target_=" in refusal(stored)
    assert refusal(stored, command="evaluate") == ""  # a test logs nothing
    assert refusal(stored, "logger=csv") == ""  # the command line's own


def test_what_only_training_builds_is_not_held_against_a_test() -> None:
    stored = {f"{part}._target_": "mine.Anything" for part in ("loss", "sampler", "optimizer")}
    assert refusal(stored, command="evaluate") == ""
    assert "loss._target_=mine.Anything" in refusal(stored)
    # unless it lends itself to something else
    assert "model.x._target_=mine.Anything" in refusal(stored | {"model.x": "${loss}"}, command="evaluate")


def test_what_the_command_line_names_is_not_held_against_the_file() -> None:
    assert refusal({"loss.margin": 0.1}, "loss._target_=mine.Loss") == ""
    assert refusal({"data.cache": "/home/x"}, "data.cache=/home/x") == ""
    line = refusal({"sampler.x._target_": "mine.Loss"}, "loss._target_=mine.Loss")  # there, and nowhere else
    assert "sampler.x._target_=mine.Loss" in line
    assert " loss._target_" not in line


def test_trust_prints_what_is_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal({"loss._target_": "mine.Loss"}, "trust=true") == ""
    assert "trusted  resume=some/run: loss._target_=mine.Loss" in capsys.readouterr().out


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in refusal({"loss.x._target_": "\x1b[2Jos.system"})
