"""Runs that are killed, what runs leave in their folders, and whether two have left the same."""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch
from kill_points import die_at
from ports import free_port
from pytorch_lightning.utilities import rank_zero_only

from dml.commands import main
from dml.runtime import signals
from dml.runtime.run_folder import RunFolder


def kill_at(point: str, occurrence: int, *arguments: str, within: str = "") -> None:
    """Starts ``train.py``, which dies with all its processes when it reaches a point for the n-th time.

    It is a copy of this process, which has loaded the libraries: that takes longer than the run.
    """

    def run() -> None:
        os.setsid()
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        die_at(point, occurrence, within)
        sys.argv = ["train.py", *arguments]
        main("train")

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"it ended before it was {occurrence} times {point}"


def stop_at(
    point: str, occurrence: int, signum: int, *arguments: str, command: str = "train", again: float | None = None
) -> tuple[int, str]:
    """Starts a command, which sends itself a signal when it reaches a point for the n-th time -> exit code, stderr.

    After ``again`` seconds the signal is sent a second time, while the process stays at the point.
    """

    def send_again() -> None:
        while not signals.is_requested():
            time.sleep(0.01)
        time.sleep(again or 0)
        os.kill(os.getpid(), signum)

    def run() -> None:
        os.setsid()
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stderr = errors  # pytest has replaced it
        die_at(point, occurrence, signum=signum, pause=10 if again else 0)
        if again is not None:
            Thread(target=send_again, daemon=True).start()
        sys.argv = [f"{command}.py", *arguments]
        signals.handle_signals()
        main(command)

    with tempfile.TemporaryFile("w+") as errors:
        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        process.join()
        assert process.exitcode is not None
        errors.seek(0)
        return process.exitcode, errors.read()


def train(folder: Path, *arguments: str) -> Path:
    """Run train.py in this process, for fixtures of modules -> the folder of the run."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["train.py", *arguments, f"hydra.run.dir={folder}"])
        main("train")
    return folder


class Ended(NamedTuple):
    """How a process ended: its exit code, and what it printed to stderr."""

    code: int | None
    errors: str


def run_ranks(folder: Path, *arguments: str, signaled: dict[int, tuple[str, int, int]] | None = None) -> list[Ended]:
    """Run train.py in two copies of this process, which are started as torchrun starts processes.

    The launcher of dml starts a new Python for each, which takes five seconds: tests/test_wheel.py has it. ``signaled``
    has for a rank the arguments of `kill_points.die_at`: a point, its occurrence, and a signal.
    """
    environment = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environment["MASTER_PORT"] = str(free_port())

    def run(rank: int, errors: Path) -> None:
        os.environ |= environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr = errors.open("w", buffering=1)  # pytest has replaced it
        rank_zero_only.rank = rank  # Lightning has read it from the environment when it was imported
        if signaled and rank in signaled:
            point, occurrence, signum = signaled[rank]
            die_at(point, occurrence, signum=signum)
        sys.argv = ["train.py", *arguments]
        signals.handle_signals()
        main("train")

    paths = [folder / f"errors_{rank}" for rank in range(2)]
    processes = [
        multiprocessing.get_context("fork").Process(target=run, args=(rank, path)) for rank, path in enumerate(paths)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return [Ended(process.exitcode, path.read_text()) for process, path in zip(processes, paths, strict=True)]


TWO = ["trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu"]
"""Overrides for two processes on the CPU."""


def metrics(folder: Path) -> dict[str, Any]:
    """The contents of metrics.json."""
    return RunFolder(folder).metrics()


def last(folder: Path) -> dict[str, Any]:
    """The contents of checkpoints/last.ckpt."""
    checkpoint: dict[str, Any] = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return checkpoint


def assert_same_run(whole: Path, resumed: Path) -> None:
    """Weights, the optimizer's state, history and metrics, bit for bit."""
    expected, found = last(whole), last(resumed)
    for name, weights in expected["state_dict"].items():
        assert torch.equal(weights, found["state_dict"][name]), name
    for parameter, state in expected["optimizer_states"][0]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, found["optimizer_states"][0]["state"][parameter][name])
    assert found["callbacks"]["BestCheckpoint"] == expected["callbacks"]["BestCheckpoint"]
    assert (resumed / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()
    assert not list(resumed.rglob("*.partial"))
    # whose configurations may differ in what changes nothing, such as the number of workers
    assert metrics(resumed) | {"configuration": ""} == metrics(whole) | {"configuration": ""}
