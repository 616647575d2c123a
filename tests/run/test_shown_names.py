"""Names of classes, levels, heads and folders where they are shown: what is read as markup has none of theirs."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from dml.data.prepared.verification import CheckedImage, list_faults
from dml.data.split_overview import make_count_table
from dml.data.table import ImageTable
from dml.report.comparison import ConfigurationResult, markdown
from dml.report.console import metric_table
from dml.report.pictures import draw_sheet
from dml.report.statistics import Interval
from dml.run import jobs, prepare_job

NAMES = ["[/red]", "[bold]x", "a\x1b[31mb", "two\nlines", "\u202eabc", ":smile:", "x\\", "[/]", "a | `b` <i>"]
SHOWN = [r"[/red]", "[bold]x", r"a\x1b[31mb", r"two\nlines", r"\u202eabc", ":smile:", "x\\", "[/]", "a | `b` <i>"]
PAIRS = list(zip(NAMES, SHOWN, strict=True))


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What the consoles write, in a terminal that is wide enough."""
    file = StringIO()
    for module in (jobs, prepare_job):
        own = module.console
        monkeypatch.setattr(module, "console", Console(file=file, width=200, highlight=False, emoji=own._emoji))
    return file


@pytest.mark.parametrize(("name", "shown"), PAIRS)
def test_the_tables_of_metrics(screen: StringIO, name: str, shown: str) -> None:
    metrics = {"level0/recall@1": 0.5, "level1/recall@1": 0.5}
    table = metric_table({name: metrics}, levels=(name, "other"), metrics=["recall@1"], title=name)
    jobs.console.print(table)
    text = screen.getvalue()
    assert text.count(shown) == 4  # title, level, and the row of each level
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(("name", "shown"), PAIRS)
def test_what_prepare_prints(screen: StringIO, name: str, shown: str) -> None:
    table = ImageTable(np.array([f"{name}/1.jpg"]), np.zeros((1, 1), np.int64), np.array(["train"]), (name,))
    prepare_job.console.print(make_count_table(table, {}))
    gone = CheckedImage(-1, -1, -1, -1, 0, 0, "", "no such file")
    prepare_job._print_faults(list_faults(table, dict.fromkeys(table.paths.tolist(), gone)))
    text = screen.getvalue()
    assert f" {shown} " in text
    assert f"  {shown}/1.jpg\n" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("name", "shown"), PAIRS)
def test_a_row_of_markdown_keeps_its_cells(name: str, shown: str) -> None:
    line = markdown([ConfigurationResult(name, {"recall": Interval(1, 0.5, 0.0, 0.0)})], ["recall"]).splitlines()[-1]
    unescaped = line.replace("\\|", "").replace("\\`", "").replace("\\<", "").replace("\\\\", "")
    assert unescaped.count("|") == 4
    assert "`" not in unescaped
    assert "<" not in unescaped
    assert line.startswith(f"| {shown.split('|')[0].rstrip(chr(92))}")


@pytest.mark.parametrize("name", NAMES)
def test_a_contact_sheet_has_them_as_titles(tmp_path: Path, name: str) -> None:
    black = torch.zeros(3, 8, 8, dtype=torch.uint8)
    draw_sheet([(name, [("", "")])], tmp_path / "sheet.png", lambda _: black)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width == 800


# every line that Rich prints
