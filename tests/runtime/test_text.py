"""What people read: names that are safe to show, tables, progress, and a run's log of what was printed."""

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from dml.runtime.processes import python_environment
from dml.runtime.text import ProgressMeter, RunConsole, in_markup, markdown_table, printable, progress_bar


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("two\nlines\r\ttab", r"two\nlines\r\ttab"),
        ("\x9b2J\x7f\0", r"\x9b2J\x7f\x00"),
        ("\u202egpj.exe\u2066", r"\u202egpj.exe\u2066"),
        ("\u2028\u200f\ufeff", r"\u2028\u200f\ufeff"),
        (os.fsdecode(b"caf\xe9"), r"caf\xe9"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown
    assert printable(printable(name)) == shown
    assert shown.isprintable()


def test_all_else_stays() -> None:
    for name in ('a b\'s "c", d%s {} $x$ \\', "[/red]", "naïve 日本 عربي 👩‍👩‍👧 é"):
        assert printable(name) == name


@pytest.mark.parametrize("name", ["[/red]", "[bold]x", "a\\", "\\[x]", "[link=x]y[/link]", "[[x]]", "[@click=x()]"])
def test_rich_shows_a_name_as_it_is(name: str) -> None:
    file = StringIO()
    Console(file=file, width=200, emoji=False).print(f"[bold]{in_markup(name)}[/] end")
    assert file.getvalue() == f"{name} end\n"


def test_columns_are_aligned_and_bars_are_escaped() -> None:
    table = markdown_table(["a|b", "n"], [["`x|y`", "1"], ["", "–"]], right=(1,))
    assert table == "| a\\|b | n |\n| --- | ---: |\n| `x\\|y` | 1 |\n|  | – |"


def test_the_speed_is_that_since_the_last_line_and_the_time_left_that_of_all() -> None:
    seconds = 100.0
    meter = ProgressMeter(interval=30, first=5, clock=lambda: seconds)
    lines = []
    for passed, images, paused in [(6, 60, 0), (12, 640, 0), (20, 640, 0), (100, 80, 60)]:
        seconds += passed
        meter.pause(paused)
        lines.append(meter.line(left=10) if meter.advance(images) else None)
    assert lines == ["10 images/s, 0:01:00 left", None, "40 images/s, 0:02:07 left", "2 images/s, 0:05:45 left"]


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
    console.begin_log(tmp_path / "removed" / "train.log")
    console.print("error")
    assert not (tmp_path / "removed").exists()


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


@pytest.mark.pipeline
def test_letters_that_the_output_cannot_hold_are_escaped() -> None:
    environment = python_environment(PYTHONIOENCODING="ascii")
    command = [sys.executable, "-m", "dml", "folder→nowhere"]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert ended.returncode == 2
    assert b"folder\\u2192nowhere" in ended.stderr
    assert b"Traceback" not in ended.stderr
