"""Sweeps as a user starts them, stops them and starts them again."""

import copy
import json
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna  # here, as its log goes to what is stderr when it is imported
import pytest
import torch
from configurations import settings_of
from conftest import ONE_HEAD, Here, Refused
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf
from runs import kill_at, last, metrics

from dml.commands.compare import compare_runs
from dml.report.comparison import find_unfinished
from dml.run import sweeps
from dml.run.config_folders import CONF
from dml.run.sweeps import read_objective, sweep_subfolder
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder

TINY = [*ONE_HEAD, "trainer.max_steps=2", "trainer.val_check_interval=1", "checkpoints.every_n_steps=200"]
Lines = Callable[[], list[str]]
Failed = Callable[..., list[str]]
Printed = Callable[..., tuple[str, str]]


@pytest.fixture
def told(capfd: pytest.CaptureFixture[str]) -> Lines:
    """What has been said since about runs that were skipped or resumed."""
    capfd.readouterr()
    return lambda: [line for line in capfd.readouterr().out.splitlines() if line.startswith(("skipped", "resumed"))]


@pytest.fixture
def failed(here: Here, capfd: pytest.CaptureFixture[str]) -> Failed:
    """failed("-m", "seed=1,2", ...) -> the lines on stderr of a sweep some of whose runs failed."""

    def failed(*arguments: str) -> list[str]:
        with pytest.raises(SystemExit) as stopped:
            here("train", *arguments)
        assert stopped.value.code == 2
        return [line for line in capfd.readouterr().err.splitlines() if line.startswith(("failed: ", "error: "))]

    return failed


@pytest.fixture
def compared(capfd: pytest.CaptureFixture[str]) -> Printed:
    """compared(folder, ...) -> what ``dml compare folder ...`` writes to stdout and to stderr."""

    def compared(*arguments: str) -> tuple[str, str]:
        capfd.readouterr()
        compare_runs(arguments)
        written = capfd.readouterr()
        return written.out, written.err

    return compared


def kill_in_the_second_run(sweep: Path, *arguments: str) -> None:
    """Starts a sweep, and kills it once its second run has written a checkpoint."""
    kill_at("after last.ckpt is replaced", 1, "-m", *arguments, f"hydra.sweep.dir={sweep}", within=str(sweep / "1"))


def test_a_killed_sweep_goes_on_where_it_stopped(
    here: Here, told: Lines, failed: Failed, compared: Printed, small_emoji: Path, tmp_path: Path
) -> None:
    # two configurations of one training: the run that nobody interrupts tells what the other has to give
    sweep = tmp_path / "sweep"
    common = [f"dataset.root={small_emoji}", *TINY]
    kill_in_the_second_run(sweep, *common, "checkpoints.every_n_steps=200,100")
    assert last(sweep / "1")["global_step"] < 2, "it finished before it was killed"
    assert find_unfinished([sweep]) == [sweep / "1"]
    finished = (sweep / "0" / "metrics.json").stat().st_mtime_ns

    # in another order: a run is known by its configuration, not by its number
    again = ["-m", f"hydra.sweep.dir={sweep}", *common, "checkpoints.every_n_steps=100,200"]
    here("train", *again)
    assert told() == [f"resumed  {sweep / '1'}", f"skipped  {sweep / '0'}: finished already"]
    assert (sweep / "0" / "metrics.json").stat().st_mtime_ns == finished
    whole, resumed = last(sweep / "0")["state_dict"], last(sweep / "1")["state_dict"]
    assert all(torch.equal(whole[name], resumed[name]) for name in whole | resumed)
    assert (sweep / "1" / "metrics.csv").read_bytes() == (sweep / "0" / "metrics.csv").read_bytes()
    same = [name for name in metrics(sweep / "0") if name != "configuration"]
    assert [metrics(sweep / "1")[name] for name in same] == [metrics(sweep / "0")[name] for name in same]

    # while another process works in the folder of a run, a sweep waits for its end
    with RunFolder(sweep / "0").hold():
        waiting = multiprocessing.get_context("fork").Process(target=here, args=("train", *again))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    waiting.join(60)
    assert waiting.exitcode == 0
    assert sorted(told()) == [f"skipped  {sweep / run}: finished already" for run in "01"]

    assert sorted(path.name for path in sweep.iterdir() if path.is_dir()) == ["0", "1"]

    # a run that fails keeps the sweep from nothing; its number's folder is another run's
    lines = failed("-m", f"hydra.sweep.dir={sweep}", *common, "sampler.images_per_class=1,2", "trainer.max_steps=1")
    (failing,) = (folder for folder in find_unfinished([sweep]) if folder.name.startswith("0-"))
    line = f"{failing}: sampler.images_per_class=1: RankedListLoss compares images of one class and needs at least 2"
    assert lines == [f"failed: {line}", f"error: {line}"]
    (third,) = (folder for folder in sweep.iterdir() if folder.name.startswith("1-"))
    assert metrics(third)["step"] == 1

    table, unfinished = compared(str(sweep))
    assert unfinished == f"unfinished: {failing}\n"
    rows = [line for line in table.splitlines()[2:] if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in sorted(rows)] == [
        "| trainer.max_steps=1, checkpoints.every_n_steps=200",
        "| trainer.max_steps=2, checkpoints.every_n_steps=100",
        "| trainer.max_steps=2, checkpoints.every_n_steps=200",
    ]


@pytest.mark.thorough  # each process loads the libraries
def test_a_sweep_in_processes_of_their_own_skips_what_is_finished(
    here: Here, told: Lines, small_emoji: Path, tmp_path: Path
) -> None:
    sweep = ["-m", f"hydra.sweep.dir={tmp_path}", f"dataset.root={small_emoji}", *TINY, "seed=1,2", "launcher=joblib"]
    here("train", *sweep)
    here("train", *sweep)
    assert sorted(told()) == [f"skipped  {tmp_path / run}: finished already" for run in "01"]


def test_the_processes_of_a_run_get_its_folder_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, commands = RunFolder(tmp_path / 'a "b" [1]' / "0"), list[list[str]]()
    hydra = OmegaConf.create({"sweep": {"dir": str(folder.path.parent)}})
    monkeypatch.setattr(sweeps.HydraConfig, "get", lambda: hydra)

    def launch(command: list[str], count: int, **variables: str) -> int:
        commands.append(command)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with RunFolder(folder.path).hold():  # as the first process does, while the sweep holds the folder
            return 2 * (count != 2)

    monkeypatch.setattr(sweeps.processes, "launch", launch)
    with folder.hold():
        sweeps._train_in_processes(2, folder, [])
        with pytest.raises(InputError, match="exit code 2"):
            sweeps._train_in_processes(3, folder, [])
    parsed = OverridesParser.create().parse_overrides(commands[0][-2:])
    assert [override.value() for override in parsed] == [str(folder.path), str(folder.path.parent)]


def test_a_folder_that_the_user_chose_is_not_trained_over(failed: Failed, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "checkpoints").mkdir(parents=True)
    run = {"overrides": [], "config": {}}
    torch.save({"format": 1, "state_dict": {}, "global_step": 0, "run": run}, mine / "checkpoints" / "last.ckpt")
    line = f"{mine}: hydra.sweep.subdir: {mine} holds a run of another configuration already"
    given = [f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=mine"]
    assert failed("-m", "seed=1", *given) == [f"failed: {line}", f"error: {line}"]


def placed(below: Path, number: int, **config: Any) -> str:
    """The folder that a run gets."""
    return sweep_subfolder(number, _root_=OmegaConf.create({**config, "hydra": {"sweep": {"dir": str(below)}}}))


def test_a_configuration_keeps_its_folder_whatever_its_number(tmp_path: Path) -> None:
    assert placed(tmp_path, 0, seed=1, lr=1e-5) == "0"
    assert placed(tmp_path, 1, seed=2, lr=1e-5) == "1"
    assert placed(tmp_path, 0, seed=2, lr=1e-5) == "1"
    other = placed(tmp_path, 1, seed=3, lr=1e-5)
    assert other.startswith("1-")
    assert placed(tmp_path, 7, seed=3, lr=1e-5) == other
    # how a run is run is no part of what it is
    assert placed(tmp_path, 8, seed=3, lr=1e-5, sweep={}, debug=True) == other
    assert placed(tmp_path, 8, seed=4, lr=1e-5) == "8"


def test_a_run_keeps_its_folder_whether_its_values_are_as_typed_or_as_stored(tmp_path: Path) -> None:
    typed = {"steps": 1e3, "checkpoints": {"monitor": "recall@1", "tie_breaker": None}, "stages": {}}
    assert placed(tmp_path, 0, **typed) == "0"
    RunFolder(tmp_path / "0").write_configuration(
        "steps: 1000\ncheckpoints: {monitor: level0/recall@1, tie_breaker: null}\nstages: {}\n", "{}\n", "[]\n"
    )
    assert placed(tmp_path, 5, **typed) == "0"


def test_another_value_in_the_environment_gets_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "1e-3")
    assert placed(tmp_path, 0, lr="${oc.decode:${oc.env:LR}}") == "0"
    assert RunFolder(tmp_path / "0").config == {"lr": 1e-3}
    assert placed(tmp_path, 1, lr="${oc.decode:${oc.env:LR}}") == "0"
    monkeypatch.setenv("LR", "1e-1")
    assert placed(tmp_path, 1, lr="${oc.decode:${oc.env:LR}}") == "1"


def test_optuna_searches_and_goes_on(here: Here, told: Lines, small_emoji: Path, tmp_path: Path) -> None:
    search = ["-m", "sweep=optuna", f"hydra.sweep.dir={tmp_path}", f"dataset.root={small_emoji}", *TINY]
    here("train", *search, "hydra.sweeper.n_trials=1")
    assert told() == []

    # as if it had been interrupted then, before its test
    written = (tmp_path / "0" / "metrics.json").read_bytes()
    (tmp_path / "0" / "metrics.json").unlink()
    here("train", *search, "hydra.sweeper.n_trials=1")
    assert told() == [f"resumed  {tmp_path / '0'}"]
    assert (tmp_path / "0" / "metrics.json").read_bytes() == written

    here("train", *search, "hydra.sweeper.n_trials=2")
    assert told() == [f"skipped  {tmp_path / '0'}: finished already"]
    assert last(tmp_path / "1")["global_step"] == 2

    # both are those of a study that knows nothing of the interruption
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    for run in "01":
        config: Any = OmegaConf.load(tmp_path / run / ".hydra" / "config.yaml")
        trial = study.ask()
        assert config.optimizer.lr == trial.suggest_float("optimizer.lr", 1e-4, 2e-3, log=True)
        values = RunFolder(tmp_path / run).values("val/level0/map@r")
        assert read_objective(settings_of(config), RunFolder(tmp_path / run)) == max(values.values())
        study.tell(trial, max(values.values()))
    found: Any = OmegaConf.load(tmp_path / "optimization_results.yaml")
    assert found.best_value == study.best_value
    assert found.best_params == study.best_params


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        ("checkpoints.monitor=foo", "checkpoints.monitor=foo: no metric that a validation has"),
        ("trainer.val_check_interval=null", "sweep=optuna: the search optimizes val/level0/map@r, which no validation"),
    ],
)
def test_a_search_that_cannot_succeed_ends_before_its_first_step(
    refused: Refused, tmp_path: Path, small_emoji: Path, mistake: str, line: str
) -> None:
    search = ["-m", "sweep=optuna", f"hydra.sweep.dir={tmp_path}", f"dataset.root={small_emoji}", *TINY]
    assert line in refused(*search, "hydra.sweeper.n_trials=2", mistake)  # one line alone, and no second run
    assert not [*tmp_path.rglob("checkpoints")]


def test_a_search_goes_on_after_a_run_that_fails(
    here: Here, capfd: pytest.CaptureFixture[str], tmp_path: Path, small_emoji: Path
) -> None:
    """Of the losses one alone has a margin, and it is the second; the sampler's seed proposes both."""
    searched = [
        "loss=proxy_nca,rll",
        "++loss.margin=interval(0.2,0.8)",
        "optimizer.lr=5e-4",
        "hydra.sweeper.n_trials=3",
    ]
    short = ["trainer.max_steps=1", f"hydra.sweep.dir={tmp_path}"]
    here("train", "-m", "sweep=optuna", f"dataset.root={small_emoji}", *TINY, *searched, *short)
    failed = [line for line in capfd.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert failed
    assert all("margin" in line for line in failed)
    assert len([*tmp_path.glob("*/metrics.json")]) == 3 - len(failed)
    found = OmegaConf.to_container(OmegaConf.load(tmp_path / "optimization_results.yaml"))
    assert isinstance(found, dict)
    assert found["best_params"]["loss"] == "rll"


def test_the_objective_is_that_of_the_tested_checkpoint(tmp_path: Path) -> None:
    config = OmegaConf.create({"evaluation": {"selection": "val"}, "checkpoints": {"monitor": "h_ap"}})
    (tmp_path / "metrics.csv").write_text("step,loss,val/h_ap\n1,2.0,\n2,1.0,0.25\n3,1.0,\n4,0.5,0.125\n")
    for step, value in ((2, 0.25), (3, 0.25), (4, 0.125)):
        (tmp_path / "metrics.json").write_text(json.dumps({"step": step}))
        assert read_objective(settings_of(config), RunFolder(tmp_path)) == value
    config.checkpoints.monitor = "ndcg"
    with pytest.raises(InputError, match=r"no val/ndcg to optimize in .*: it takes a validation split"):
        read_objective(settings_of(config), RunFolder(tmp_path))


SLURM = (
    *("submitit_folder", "timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name"),
    *("stderr_to_stdout", "partition", "qos", "comment", "constraint", "exclude", "gres", "cpus_per_gpu", "setup"),
    *("gpus_per_task", "mem_per_gpu", "mem_per_cpu", "account", "signal_delay_s", "max_num_timeout"),
    *("additional_parameters", "array_parallelism"),
)
"""What hydra-submitit-launcher 1.2 lets a configuration set."""


@pytest.fixture(scope="module")
def launchers() -> Iterator[None]:
    """Stand-ins for hydra-ray-launcher and hydra-submitit-launcher, which need not be installed."""
    ray = OmegaConf.create({"_target_": "ray", "ray": {"init": {"address": None}, "remote": {}}})
    slurm = OmegaConf.create({"_target_": "submitit"} | dict.fromkeys(SLURM))
    for node in (ray, ray.ray, slurm):
        OmegaConf.set_struct(node, True)
    for node in (ray.ray.init, ray.ray.remote):  # any argument of Ray's own functions
        OmegaConf.set_struct(node, False)
    with pytest.MonkeyPatch.context() as patched:
        Plugins.instance()  # which registers Hydra's own, and not in the copy
        store = ConfigStore.instance()
        patched.setattr(store, "repo", copy.deepcopy(store.repo))
        store.store("ray", ray, group="hydra/launcher")
        store.store("submitit_slurm", slurm, group="hydra/launcher")
        yield


@pytest.mark.parametrize(
    ("sweep", "launcher"),
    [("optuna", "basic"), ("optuna", "joblib"), ("optuna", "ray"), ("optuna", "submitit"), ("basic", "submitit")],
)
@pytest.mark.pipeline
def test_sweeps_compose_with_launchers(launchers: None, sweep: str, launcher: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = [f"launcher={launcher}", f"sweep={sweep}", "checkpoints.mode=min"]
        config = compose("train", overrides=chosen, return_hydra_config=True)
    assert sweep in config.hydra.sweeper._target_
    assert launcher in config.hydra.launcher._target_
    if sweep == "optuna":
        assert config.hydra.sweeper.direction == "minimize"
