import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from dml.run.cli import say
from dml.run.reproduce import {start}
fine = ["train", "--cfg", "job", "loss=nra", "hydra.run.dir=here"]
assert not {start}([fine, fine], say, 2)
assert {start}([fine, ["train", "loss=nothing"]], say, 1)
"""


@pytest.mark.parametrize("start", ["processes", "forks"])
def test_commands_run_and_a_failure_is_told(start: str, tmp_path: Path) -> None:
    # in a process of its own, as the scripts do: copies write to where the first of them was started
    program = [sys.executable, "-c", PROGRAM.format(start=start)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    python = "python -m dml train"
    fine = f"{python} --cfg job loss=nra hydra.run.dir=here"
    said = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert said == [
        f"[1 of 2] {fine}",
        f"[2 of 2] {fine}",
        f"[1 of 2] {fine}",
        "[2 of 2] python -m dml train loss=nothing",
    ]
    assert done.stdout.count("dml.losses.nra.") == 3
    assert "error: loss=nothing" in done.stderr
