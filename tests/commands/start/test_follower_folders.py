"""A run of several processes that a launcher started ends with a mistake: one removes its folder, none fails."""

import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch.distributed as dist
from gloo import on_processes
from ports import free_port

from dml.commands import main

pytestmark = pytest.mark.distributed

WORLD = 3


def train(environment: dict[str, str], folder: str, arguments: list[str]) -> tuple[object, str]:
    """Run train.py as a process of torchrun -> exit code, what it printed to stderr."""
    os.environ |= environment | {"RANK": str(dist.get_rank()), "LOCAL_RANK": str(dist.get_rank())}
    os.chdir(folder)
    sys.argv = ["train.py", *arguments]
    code: object = 0
    with redirect_stderr(StringIO()) as errors, redirect_stdout(StringIO()):
        try:
            main("train")
        except SystemExit as ended:
            code = ended.code
    dist.barrier()  # the first process keeps what the others ask
    return code, errors.getvalue()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        ("~loss", "error: ~loss: train needs loss"),
        ("optimizer.lr=-1", "error: optimizer.lr=-1: must be"),
        ("dataset.root=/nowhere", "error: dataset.root=/nowhere: "),
    ],
)
def test_a_mistake_of_three_processes_leaves_no_folder(tmp_path: Path, mistake: str, line: str) -> None:
    (tmp_path / "work").mkdir()
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment |= {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(WORLD)}
    ended = on_processes(WORLD, tmp_path, train, environment, str(tmp_path / "work"), ["trainer=ddp", mistake])
    assert [code for code, _ in ended] == [2] * WORLD
    assert all(errors.startswith(line) and errors.count("\n") == 1 for _, errors in ended)
    assert not list((tmp_path / "work").iterdir())
