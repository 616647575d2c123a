"""What is printed stands in the log of a run, too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from rich.table import Table

from dml.runtime.processes import python_environment
from dml.runtime.text import RunConsole, progress_bar


def test_a_log_holds_what_is_printed_from_before_its_beginning_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console, log = RunConsole(), tmp_path / "train.log"
    console.print("[bold]train[/]    [dim]:smile:[/]")
    assert not log.exists()
    console.begin_log(log)
    table = Table("a", title="numbers")
    table.add_row("1")
    console.print(table)
    assert log.read_text() == re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    console.write_log("[val]", markup=False)
    assert log.read_text().endswith("\n[val]\n")
    assert capsys.readouterr().out == ""
    console.end_log()
    console.print("of another run")
    assert "another" not in log.read_text()


def test_progress_is_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = RunConsole()
    monkeypatch.setattr("dml.runtime.text.console", console)
    monkeypatch.setattr("dml.runtime.text.ProgressMeter.advance", lambda *_, **__: True)
    console.begin_log(tmp_path / "train.log")
    with progress_bar("verified", 2) as advance:
        advance(1)
        console.print("a fault")
        advance(1)
    assert (tmp_path / "train.log").read_text() == "a fault\n"


def test_a_log_whose_folder_has_been_removed_is_forgotten(tmp_path: Path) -> None:
    console = RunConsole()
    console.begin_log(tmp_path / "run" / "train.log")
    console.print("error")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("program", [["-m", "dml", "compare"], [str(ROOT / "train.py")]])
@pytest.mark.pipeline
def test_letters_that_the_output_cannot_hold_are_escaped(program: list[str]) -> None:
    environment = python_environment(PYTHONIOENCODING="ascii")
    command = [sys.executable, *program, "folder→nowhere"]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert ended.returncode == 2
    assert b"folder\\u2192nowhere" in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_a_table_that_the_output_cannot_hold_is_escaped() -> None:
    lines = "from dml.runtime.signals import handle_signals; handle_signals()\n"
    lines += "from dml.runtime.text import console; console.print('100 → 200 % ─')"
    environment = python_environment(PYTHONIOENCODING="latin-1")
    ended = subprocess.run([sys.executable, "-c", lines], env=environment, capture_output=True, check=True)
    assert ended.stdout == b"100 \\u2192 200 % \\u2500\n"
