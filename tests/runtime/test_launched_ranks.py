import os
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from dml.commands.error_lines import one_line_errors
from dml.runtime import processes, signals

FORK = get_context("fork")


def test_each_device_has_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(devices: Any, accelerator: str, gpus: int) -> int:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        return processes.count_processes({"devices": devices, "accelerator": accelerator})

    assert [count(devices, "cpu", 0) for devices in (2, "3", "nonsense")] == [2, 3, 1]
    assert [count("auto", accelerator, 4) for accelerator in ("cpu", "auto", "cuda")] == [1, 4, 4]
    assert [count(devices, "cuda", 4) for devices in (-1, [0, 2], "0, 2,")] == [4, 2, 2]
    assert count(None, "auto", 0) == 1


def test_the_processes_of_a_launcher_start_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert not processes.is_launched({"strategy": {"timeout": 10}})
    assert not processes.is_launched({"strategy": "auto"})
    assert processes.is_launched({"strategy": {"cluster_environment": {}}})
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("LOCAL_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "2")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert processes.is_launched({})
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert not processes.is_launched({})


# launching

WRITES = """
import os, sys, time
from pathlib import Path
from dml.runtime import processes
from dml.runtime.signals import handle_signals
handle_signals()
rank = os.environ["RANK"]
(Path(sys.argv[1]) / rank).write_text(" ".join([os.environ["WORLD_SIZE"], os.environ["ADDED"], *sys.argv[2:]]))
"""
WAITS = WRITES + "if rank == {rank!r}: {then}\ntime.sleep(60)"
FAILS = WRITES + "processes.TOLD_WITHIN = 1.5\nprocesses.join(int(rank), 2)\ntime.sleep({delays}[int(rank)])\n{then}"


def launch(script: str, folder: Path, *arguments: str) -> int:
    return processes.launch([sys.executable, "-c", script, str(folder), *arguments], 2, ADDED="x")


def launch_in_fork(script: str, folder: Path) -> Any:
    """Launch in a program, a copy of this process."""

    def run() -> None:
        signals.handle_signals()
        with one_line_errors():
            sys.exit(launch(script, folder))

    process = FORK.Process(target=run)
    process.start()
    return process


@pytest.mark.distributed
def test_each_process_gets_the_arguments_and_the_variables(tmp_path: Path) -> None:
    environment = dict(os.environ)
    odd = ["a b", "$HOME", "$$", "${local_rank}", "'x'"]
    assert launch(WRITES, tmp_path, *odd) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == [" ".join(["2", "x", *odd])] * 2
    assert dict(os.environ) == environment


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("rank", "then", "code", "line"),
    [
        ("1", "sys.exit(2)", 2, ""),
        (
            "0",
            "os.kill(os.getpid(), 9)",
            137,
            "error: process 0 of 2 was killed by SIGKILL: most often memory is short\n",
        ),
    ],
)
def test_the_end_of_one_ends_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], rank: str, then: str, code: int, line: str
) -> None:
    began = time.monotonic()
    assert launch(WAITS.format(rank=rank, then=then), tmp_path) == code
    assert time.monotonic() - began < 30
    assert capfd.readouterr().err == line


@pytest.mark.distributed
@pytest.mark.parametrize(("to", "signum"), [("launcher", signal.SIGINT), ("0", signal.SIGTERM), ("1", signal.SIGINT)])
def test_a_signal_to_one_ends_all_with_one_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    signum: signal.Signals,
) -> None:
    monkeypatch.setattr(processes, "STOPPED_WITHIN", 0.4)
    script = WRITES + "(Path(sys.argv[1]) / f'pid_{rank}').write_text(str(os.getpid()))\ntime.sleep(60)"
    process = launch_in_fork(script, tmp_path)
    names = {rank: tmp_path / f"pid_{rank}" for rank in "01"}
    while not all(name.exists() and name.read_text() for name in names.values()):
        time.sleep(0.01)
    began = time.monotonic()
    os.kill(process.pid if to == "launcher" else int(names[to].read_text()), signum)
    process.join(60)
    assert time.monotonic() - began < 30
    assert process.exitcode == 128 + signum
    assert capfd.readouterr().err == f"stopped by {signum.name}\n"


@pytest.mark.distributed
def test_a_process_ends_with_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "sleep", lambda _: time.sleep(0.05))
    reader, writer = os.pipe()  # the process alone keeps it open in the end

    def join() -> None:
        monkeypatch.setenv(processes.LAUNCHER, str(os.getppid()))
        processes.join(0, 1)
        os.write(writer, b"joined")
        time.sleep(60)

    def start() -> None:
        FORK.Process(target=join).start()
        time.sleep(60)

    launcher = FORK.Process(target=start)
    launcher.start()
    os.close(writer)
    assert os.read(reader, 6) == b"joined"
    launcher.kill()
    launcher.join()
    began = time.monotonic()
    assert os.read(reader, 1) == b""
    assert time.monotonic() - began < 10
    os.close(reader)


# one report for all


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("delays", "then", "line"),
    [
        ([0.2, 0.0], "processes.fail(2, f'error {rank}\\n')", "error 0\n"),  # all have made the user's mistake
        ([60.0, 0.0], "processes.fail(2, f'error {rank}\\n')", "error 1\n"),  # the first waits for the second
        (  # a bug that is a consequence of the other's end
            [0.2, 0.0],
            "os.kill(os.getpid(), 9) if rank == '1' else processes.fail(1, 'lost', is_explained=False)",
            "error: process 1 of 2 was killed by SIGKILL: most often memory is short\n",
        ),
        ([0.0, 0.0], "processes.fail(1, f'bug {rank}\\n', is_explained=False)", "bug 0\n"),
    ],
)
def test_one_process_reports_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], delays: list[float], then: str, line: str
) -> None:
    assert launch(FAILS.format(delays=delays, then=then), tmp_path)
    assert capfd.readouterr().err == line
