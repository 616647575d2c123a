import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dml.papers.plans import Plan, train_runs
from dml.papers.tables.paper_tables import Training

pytestmark = pytest.mark.pipeline

PROGRAM = """
from dml.commands.failures.error_lines import print_line
from dml.papers.plans import {start}
fine = ["train", "--cfg", "job", "loss=nra", "hydra.run.dir=here"]
assert not {start}([fine, fine], print_line, 2)
assert {start}([fine, ["train", "loss=nothing"]], print_line, 1)
"""


STOPPED = """
import os, signal
from dml.commands.failures.error_lines import one_line_errors, print_line
from dml.ops.process.signals import handle_signals
from dml.papers.plans import {start}

def stop_before_the_start(line):
    print_line(line)
    os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    handle_signals()
    small = ["model=small_cnn", "transform.size=32", "evaluation.raw=false", "data.num_workers=0"]
    endless = ["train", *small, "trainer.max_steps=1000000", "trainer.val_check_interval=null", "hydra.run.dir=run"]
    with one_line_errors():
        {start}([endless, endless], stop_before_the_start, 1)
"""


@pytest.mark.parametrize("start", ["run_processes", pytest.param("run_forks", marks=pytest.mark.thorough)])
def test_a_signal_ends_a_run_that_is_being_started(start: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STOPPED.format(start=start))
    program = [sys.executable, "program.py"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 143, done.stderr
    assert done.stderr.endswith("stopped by SIGTERM\n")
    assert done.stdout.count("[1 of 2]") == 1
    assert "[2 of 2]" not in done.stdout


@pytest.mark.parametrize("start", ["run_processes", "run_forks"])
def test_commands_run_and_a_failure_is_told(start: str, tmp_path: Path) -> None:
    # in a process of its own, as the commands do: copies write to where the first of them was started
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


def test_a_run_that_another_command_has_finished_is_no_failure(tmp_path: Path) -> None:
    runs = Plan(tmp_path, seeds=2).list_runs(Training("claims/rll"))

    def finish(number: int) -> bool:
        """Tell a failure, as of a run that is refused, after another command has finished some runs."""
        for run in runs[:number]:
            run.folder.mkdir(parents=True)
            (run.folder / "metrics.json").write_text("{}")
        return True

    assert train_runs(runs, Path(), print, runner=lambda *_: finish(1))
    shutil.rmtree(tmp_path)
    assert not train_runs(runs, Path(), print, runner=lambda *_: finish(2))
