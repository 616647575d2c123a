import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dml.studies import runs as study_runs
from dml.studies.runs import Plan
from dml.studies.study import Training

pytestmark = pytest.mark.pipeline

PROGRAM = """
from dml.studies.runs import run_processes
fine = ["train", "--help"]
assert not run_processes([fine, fine], 2)
assert run_processes([["train", "loss=nothing"]])
"""


STOPPED = """
import os, signal
from dml.commands.error_lines import one_line_errors, print_line
from dml.runtime.signals import handle_signals
from dml.studies import runs

def stop_before_the_start(line):
    print_line(line)
    os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    handle_signals()
    small = ["model=small_cnn", "transform.size=32", "evaluation.raw=false", "data.num_workers=0"]
    endless = ["train", *small, "trainer.max_steps=1000000", "trainer.val_check_interval=null", "hydra.run.dir=run"]
    runs.print_line = stop_before_the_start
    with one_line_errors():
        runs.run_processes([endless, endless])
"""


def test_a_signal_ends_a_run_that_is_being_started(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STOPPED)
    program = [sys.executable, "program.py"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 143, done.stderr
    assert done.stderr.endswith("stopped by SIGTERM\n")
    assert done.stdout.count("[1 of 2]") == 1
    assert "[2 of 2]" not in done.stdout


def test_commands_run_and_a_failure_is_told(tmp_path: Path) -> None:
    # in a process of its own, as the commands do
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    python = "python -m dml train"
    fine = f"{python} --help"
    said = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert said == [
        f"[1 of 2] {fine}",
        f"[2 of 2] {fine}",
        "[1 of 1] python -m dml train loss=nothing",
    ]
    assert done.stdout.count("dml train loss.margin=0.2 model=resnet50") == 2
    assert "error: loss=nothing" in done.stderr


def test_a_run_that_another_command_has_finished_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(tmp_path, seeds=2)
    runs = plan.list_runs(Training("leaderboard/emoji"))

    def finish(number: int) -> bool:
        """Tell a failure, as of a run that is refused, after another command has finished some runs."""
        for run in runs[:number]:
            run.folder.mkdir(parents=True)
            (run.folder / "metrics.json").write_text("{}")
        return True

    monkeypatch.setattr(study_runs, "run_processes", lambda *_: finish(1))
    assert plan.train(runs, "runs")
    shutil.rmtree(tmp_path)
    monkeypatch.setattr(study_runs, "run_processes", lambda *_: finish(2))
    assert not plan.train(runs, "runs")
