import os
from io import StringIO

import pytest
from rich.console import Console

from dml.runtime.text import in_markup, printable


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
