import os
import signal
import sys
import time
from contextlib import redirect_stderr, suppress
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import on_processes
from ports import free_port

from dml.runtime import ranks, signals

FORK = get_context("fork")


@pytest.mark.parametrize(
    ("devices", "accelerator", "gpus", "count"),
    [
        (2, "cpu", 0, 2),
        ("3", "cpu", 0, 3),
        ("auto", "cpu", 4, 1),
        ("auto", "auto", 4, 4),
        (-1, "cuda", 4, 4),
        (None, "auto", 0, 1),
        ([0, 2], "gpu", 4, 2),
        ("0, 2,", "gpu", 4, 2),
        ("nonsense", "cpu", 0, 1),
    ],
)
def test_each_device_has_a_process(
    monkeypatch: pytest.MonkeyPatch, devices: Any, accelerator: str, gpus: int, count: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert ranks.count_processes({"devices": devices, "accelerator": accelerator}) == count


def test_the_processes_of_a_launcher_start_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert not ranks.is_launched({"strategy": {"timeout": 10}})
    assert not ranks.is_launched({"strategy": "auto"})
    assert ranks.is_launched({"strategy": {"cluster_environment": {}}})
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("LOCAL_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "2")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert ranks.is_launched({})
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert not ranks.is_launched({})


# launching

WRITES = """
import os, sys, time
from pathlib import Path
rank = os.environ["RANK"]
(Path(sys.argv[1]) / rank).write_text(" ".join([os.environ["WORLD_SIZE"], os.environ["ADDED"], *sys.argv[2:]]))
"""
WAITS = WRITES + "if rank == {rank!r}: {then}\ntime.sleep(60)"


def launch(script: str, folder: Path, *arguments: str) -> int:
    return ranks.launch([sys.executable, "-c", script, str(folder), *arguments], 2, ADDED="x")


def launch_in_fork(script: str, folder: Path) -> Any:
    """Launch in a copy of this process, whose handlers of signals elastic replaces."""

    def run() -> None:
        with signals.handling():
            sys.exit(launch(script, folder))

    process = FORK.Process(target=run)
    process.start()
    return process


@pytest.mark.distributed
def test_each_process_gets_the_arguments_and_the_variables(tmp_path: Path) -> None:
    handlers, environment = [signal.getsignal(signum) for signum in (15, 2)], dict(os.environ)
    odd = ["a b", "$HOME", "$$", "${local_rank}", "'x'"]
    with signals.handling():
        assert launch(WRITES, tmp_path, *odd) == 0
        with pytest.raises(signals.Stopped):  # signals are handled as before
            os.kill(os.getpid(), signal.SIGTERM)
    assert [(tmp_path / rank).read_text() for rank in "01"] == [" ".join(["2", "x", *odd])] * 2
    assert dict(os.environ) == environment
    assert [signal.getsignal(signum) for signum in (15, 2)] == handlers


@pytest.mark.distributed
@pytest.mark.first_cases(2)
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
        ("1", "os.kill(os.getpid(), 11)", 139, "error: process 1 of 2 was killed by SIGSEGV\n"),
    ],
)
def test_the_end_of_one_ends_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], rank: str, then: str, code: int, line: str
) -> None:
    began = time.monotonic()
    with signals.handling():
        assert launch(WAITS.format(rank=rank, then=then), tmp_path) == code
    assert time.monotonic() - began < 30
    assert capfd.readouterr().err == line


@pytest.mark.distributed
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on(tmp_path: Path, signum: signal.Signals) -> None:
    handles = f"import signal\nsignal.signal({int(signum)}, lambda *_: sys.exit((Path(sys.argv[1]) / 'got').touch()))\n"
    process = launch_in_fork(handles.join(WRITES.split("rank =")[:1]) + WRITES + handles + "time.sleep(60)", tmp_path)
    while not ((tmp_path / "0").exists() and (tmp_path / "1").exists()):
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(process.pid, signum)
    process.join(30)
    assert process.exitcode == 128 + signum
    assert (tmp_path / "got").exists()


@pytest.mark.distributed
def test_a_process_ends_with_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()  # the process alone keeps it open in the end

    def join() -> None:
        monkeypatch.setenv(ranks.LAUNCHER, str(os.getppid()))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(free_port()))
        signals.handle_signals()
        ranks.join(0, 1)
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


def fail(environment: dict[str, str], explained: dict[int, bool], delays: list[float]) -> str:
    """Join as a process of a launcher, and fail, unless this process has no error -> what it prints."""
    rank = dist.get_rank()
    os.environ |= environment
    ranks.join(rank, dist.get_world_size())
    time.sleep(delays[rank])
    signals.exit_at_once = sys.exit
    with redirect_stderr(StringIO()) as errors, suppress(SystemExit):
        if rank in explained:
            ranks.fail(2, f"error {rank}", is_explained=explained[rank])
    dist.barrier()  # the first process keeps what the others ask
    return errors.getvalue()


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("explained", "delays", "reporter"),
    [
        ({0: True, 1: True, 2: True}, [0.5, 0.2, 0], 0),
        ({0: False, 1: False, 2: False}, [0.5, 0.2, 0], 0),
        ({0: False, 2: True}, [3.5, 0, 0], 2),  # the first fails because the last has reported and ended
    ],
)
def test_one_process_reports_an_error(
    tmp_path: Path, explained: dict[int, bool], delays: list[float], reporter: int
) -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    printed = on_processes(3, tmp_path, fail, environment, explained, delays)
    assert printed == [f"error {rank}" if rank == reporter else "" for rank in range(3)]
