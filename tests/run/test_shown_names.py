"""Names of classes, levels, heads and folders where they are shown: what is read as markup has none of theirs."""

from io import StringIO

import pytest
from rich.console import Console

from dml.report.comparison import ConfigurationResult, markdown
from dml.report.console import metric_table
from dml.report.statistics import Interval
from dml.run import jobs

NAMES = ["[/red]", "[bold]x", "a\x1b[31mb", "two\nlines", "\u202eabc", ":smile:", "x\\", "[/]", "a | `b` <i>"]
SHOWN = [r"[/red]", "[bold]x", r"a\x1b[31mb", r"two\nlines", r"\u202eabc", ":smile:", "x\\", "[/]", "a | `b` <i>"]
PAIRS = list(zip(NAMES, SHOWN, strict=True))


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What the consoles write, in a terminal that is wide enough."""
    file = StringIO()
    monkeypatch.setattr(jobs, "console", Console(file=file, width=200, highlight=False, emoji=jobs.console._emoji))
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
def test_a_row_of_markdown_keeps_its_cells(name: str, shown: str) -> None:
    line = markdown([ConfigurationResult(name, {"recall": Interval(1, 0.5, 0.0, 0.0)})], ["recall"]).splitlines()[-1]
    unescaped = line.replace("\\|", "").replace("\\`", "").replace("\\<", "").replace("\\\\", "")
    assert unescaped.count("|") == 4
    assert "`" not in unescaped
    assert "<" not in unescaped
    assert line.startswith(f"| {shown.split('|')[0].rstrip(chr(92))}")
