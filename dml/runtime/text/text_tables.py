"""Tables as text: Markdown for a page, CSV for another program."""

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from dml.runtime.filesystem.files import replacing


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    r"""Format a Markdown table; its last line has no line break.

    >>> print(markdown_table(["loss", "recall@1"], [["a|b", "61.2"]], right=[1]))
    | loss | recall@1 |
    | --- | ---: |
    | a\|b | 61.2 |

    Args:
        header: heads of the columns.
        rows: cells of each row, as many as there are columns.
        right: indices of the columns that are aligned to the right, such as columns of numbers.

    Raises:
        ValueError: if a row has more or fewer cells than the header.
    """
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    lines = [_line(cell.replace("|", r"\|") for cell in cells) for cells in (header, *_same_width(rows, len(header)))]
    return "\n".join([lines[0], _line(rule), *lines[1:]])


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows, the header first, to a CSV file in one step: the file is never seen half written.

    Args:
        path: file to write or to replace; a missing folder is made.
        rows: cells of each row, in the order of the columns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def format_csv(rows: Iterable[Sequence[object]]) -> str:
    r"""Format rows, the header first, as CSV whose lines end in "\n".

    Cells with any line end are quoted; `csv.writer` leaves a carriage return unquoted where its lines end in "\n".

    >>> format_csv([["class", "split"], ["a\rb", "train"]])
    'class,split\n"a\rb",train\n'
    """
    lines = []
    for row in rows:
        line = io.StringIO(newline="")
        csv.writer(line, lineterminator="\r\n").writerow(row)
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _same_width(rows: Iterable[Sequence[str]], width: int) -> Iterable[Sequence[str]]:
    for row in rows:
        if len(row) != width:
            raise ValueError(f"a row of {len(row)} cells in a table of {width} columns: {list(row)}")
        yield row


def replace_between(page: str, markers: tuple[str, str], text: str) -> str | None:
    r"""Replace the lines of a page between two markers; None if the page lacks one.

    >>> replace_between("a <!-- b --> c <!-- /b -->", ("<!-- b -->", "<!-- /b -->"), "d")
    'a <!-- b -->\nd\n<!-- /b -->'

    Args:
        page: the whole page.
        markers: the marker before the lines, and that behind them; both stay.
        text: the new lines.
    """
    begin, end = markers
    before, opened, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}" if opened and closed else None
