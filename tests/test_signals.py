"""SIGINT and SIGTERM at named points of a run: one line, the exit code, whole files, and a run that goes on."""

import os
import signal
import time
from pathlib import Path

import pytest
from conftest import ONE_HEAD, Here
from forks import ForkedScript
from runs import assert_same_run, last, stop_at, train

from dml.runtime import signals
from dml.runtime.run_folder import RunFolder, RunState

QUICK = [*ONE_HEAD, "evaluation.metrics=[recall]", "data.num_workers=1"]
pytestmark = pytest.mark.pipeline
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


@pytest.fixture(scope="module")
def whole(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole") / "run", f"dataset.root={small_emoji}", *QUICK)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("point", "occurrence", "signum", "step"),
    [
        ("after a step's metrics are logged", 1, signal.SIGTERM, 2),  # which are logged after the step has ended
        ("before a validation is judged", 1, signal.SIGINT, 3),
        ("before last.ckpt is written", 1, signal.SIGTERM, 2),
        ("in the middle of a checkpoint", 3, signal.SIGINT, 3),
        ("before last.ckpt is replaced", 4, signal.SIGTERM, 6),
    ],
)
def test_a_training_stops_after_the_step_and_goes_on_bit_for_bit(
    here: Here, whole: Path, small_emoji: Path, tmp_path: Path, point: str, occurrence: int, signum: int, step: int
) -> None:
    folder = tmp_path / "run"
    given = [f"dataset.root={small_emoji}", *QUICK, f"hydra.run.dir={folder}"]
    code, errors = stop_at(point, occurrence, signum, *given)
    name = signal.Signals(signum).name
    assert errors == f"stopped at step {step} of 6 by {name}; resume={folder} goes on\n"
    assert code == CODES[signal.Signals(signum)]
    assert last(folder)["global_step"] == step
    assert RunFolder(folder).state == RunState.INTERRUPTED
    assert not list(folder.rglob("*.partial"))
    here("train", f"resume={folder}")
    assert_same_run(whole, folder)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "point", ["before the configuration is written", "before the test", "before metrics.json is written"]
)
def test_outside_of_training_it_ends_at_once(
    here: Here, whole: Path, small_emoji: Path, tmp_path: Path, point: str, signum: int
) -> None:
    folder = tmp_path / "run"
    given = [f"dataset.root={small_emoji}", *QUICK, f"hydra.run.dir={folder}"]
    code, errors = stop_at(point, 1, signum, *given)
    is_new = point == "before the configuration is written"
    hint = "the same command starts it again" if is_new else f"resume={folder} goes on"
    assert errors == f"stopped by {signal.Signals(signum).name}; {hint}\n"
    assert code == CODES[signal.Signals(signum)]
    assert not (folder / "metrics.json").exists()
    assert not list(folder.rglob("*.partial"))
    if not is_new:
        here("train", f"resume={folder}")
        assert_same_run(whole, folder)


def test_a_second_signal_ends_at_once(
    here: Here, whole: Path, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "GRACE_PERIOD", 0.3)
    folder = tmp_path / "run"
    given = [f"dataset.root={small_emoji}", *QUICK, f"hydra.run.dir={folder}"]
    code, errors = stop_at("before a validation is judged", 2, signal.SIGINT, *given, again=0.6)
    assert errors.splitlines() == [
        "stopping after this step or validation; Ctrl-C again stops at once",
        f"stopped by SIGINT; resume={folder} goes on",
    ]
    assert code == 130
    here("train", f"resume={folder}")
    assert_same_run(whole, folder)


def test_a_whole_group_is_signaled_and_workers_print_nothing(small_emoji: Path, tmp_path: Path) -> None:
    endless = [*QUICK, "trainer.max_steps=1000000", "trainer.val_check_interval=null"]
    for signum, code in CODES.items():
        folder = tmp_path / str(code)
        process = ForkedScript("train.py", f"dataset.root={small_emoji}", *endless, f"hydra.run.dir={folder}")
        while process.poll() is None and not (folder / "checkpoints" / "last.ckpt").exists():
            time.sleep(0.05)
        os.killpg(process.pid, signum)
        errors = process.finish(timeout=60).stderr  # nobody is left
        errors = errors.removeprefix(
            "stopping after this step or validation; Ctrl-C again stops at once\n"
        )  # if it takes a second
        step = last(folder)["global_step"]
        assert errors == f"stopped at step {step} of 1,000,000 by {signum.name}; resume={folder} goes on\n"
        assert process.returncode == code


def test_a_sweep_stops_and_the_same_command_goes_on(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    short = [f"dataset.root={small_emoji}", *QUICK, "trainer.max_steps=3", "trainer.val_check_interval=null"]
    given = ["-m", "seed=1,2", *short, f"hydra.sweep.dir={tmp_path}"]
    code, errors = stop_at("before last.ckpt is written", 1, signal.SIGTERM, *given)
    assert code == 143
    assert errors == "stopped at step 2 of 3 by SIGTERM; the same command goes on with the sweep\n"
    assert not (tmp_path / "1" / "metrics.json").exists()
    here("train", *given)
    assert RunFolder(tmp_path / "0").is_finished
    assert RunFolder(tmp_path / "1").is_finished


def test_slurms_warning_stops_the_run(small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    given = [f"dataset.root={small_emoji}", *QUICK, f"hydra.run.dir={tmp_path}"]
    code, errors = stop_at("before last.ckpt is written", 1, signal.SIGUSR1, *given)
    assert errors == f"stopped at step 2 of 6 by SIGUSR1; resume={tmp_path} goes on\n"
    assert code == 128 + signal.SIGUSR1
    assert RunFolder(tmp_path).state == RunState.INTERRUPTED
