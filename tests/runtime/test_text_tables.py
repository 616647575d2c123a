"""Markdown tables and CSV files."""

import csv
from pathlib import Path

import pytest

from dml.runtime.files import write_csv
from dml.runtime.text import markdown_table


def test_columns_are_aligned_and_bars_are_escaped() -> None:
    table = markdown_table(["a|b", "n"], [["`x|y`", "1"], ["", "–"]], right=(1,))
    assert table == "| a\\|b | n |\n| --- | ---: |\n| `x\\|y` | 1 |\n|  | – |"


def test_a_csv_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.csv"
    write_csv(path, [["row", "ours"], ["α, β", 1.5]])
    with path.open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["row", "ours"], ["α, β", "1.5"]]

    def failing() -> object:
        yield ["row"]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_csv(path, failing())
    assert "1.5" in path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["table.csv"]
