"""docs/reproducibility.md: what of each table can be trained as its paper states it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from dml.run.protocols import Choice, Difference, choices, differences
from dml.run.tables import PAPERS, Cell, Table, cells, tables

HEAD = """# What can be reproduced exactly, and what differs

`make reproducibility` writes this page from the comments of the experiments, below
[conf/experiment](../conf/experiment), and from [dml/run/reference](../dml/run/reference). A test
holds the page to them.

The columns count numbers of the papers' tables. *Quoted* numbers come from other papers, and nothing trains them. A
*trained* number has an experiment; `make table-rll-I` runs those of a table, see [README](../README.md). It is *as
stated* if the experiment has every value that the paper states, and nothing in the last column touches it. That is the
protocol, not the result: nobody has run these tables yet, except small. The papers also leave values unsaid; what was
chosen for those stands below, paper by paper.

## Tables
"""

UNSAID = """The values that {paper} doesn't state, with what their files say of them. "The release" is the code that its
authors published; "ours" is a choice of this project."""

FEW = 4


def page() -> str:
    """The whole page."""
    header = ["table", "data sets", "quoted", "trained", "as stated", "differs from the paper's protocol, and why"]
    parts = [HEAD, _table(header, map(_line, tables()), right=(2, 3, 4))]
    for paper, group in groupby(tables(), key=lambda table: table.paper):
        parts += [f"\n## What {PAPERS[paper]} leaves unsaid\n", UNSAID.format(paper=PAPERS[paper]), ""]
        parts.append(_unsaid(paper, list(group)))
    return "\n".join(parts) + "\n"


def _line(table: Table) -> list[str]:
    quoted = sum((cell.paper, cell.table, cell.own) == (table.paper, table.name, "false") for cell in cells())
    found = {cell: differences(table, cell) for cell in table.cells}
    stated = sum(not own for own in found.values())
    texts = list(dict.fromkeys(difference for own in found.values() for difference in own))
    said = [_said(table, one, [cell for cell, own in found.items() if one in own]) for one in texts]
    counts = [str(number) if number else "–" for number in (quoted, len(table.cells), stated)]
    name = f"{PAPERS[table.paper]} {table.name}"
    return [name, ", ".join(dict.fromkeys(cell.dataset for cell in table.cells)), *counts, "<br>".join(said)]


def _said(table: Table, difference: Difference, touched: Sequence[Cell]) -> str:
    """The difference, with the rows or metrics that it is of unless it is of all."""
    possible = [cell for cell in table.cells if difference.touches(cell)]
    scope = [f"`{metric}`" for metric in difference.metrics if len(possible) < len(table.cells)]
    if len(touched) < len(possible):
        rows, all_rows = Counter(cell.row for cell in touched), Counter(cell.row for cell in possible)
        names = [
            f"`{row}`" if count == all_rows[row] else f"`{row}` on {', '.join(_datasets(row, touched))}"
            for row, count in rows.items()
        ]
        scope.append(", ".join(names) if len(names) <= FEW else f"{len(names)} of {len(all_rows)} rows")
    text = difference.text if not scope else difference.text[0].lower() + difference.text[1:]
    return f"{', '.join(scope)}: {text}" if scope else text[0].upper() + text[1:]


def _datasets(row: str, touched: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.dataset for cell in touched if cell.row == row))


def _unsaid(paper: str, group: Sequence[Table]) -> str:
    """A line a value, or a few that one comment is about."""
    used: dict[tuple[str, str], dict[str, None]] = {}
    values: dict[tuple[str, str], dict[str, None]] = {}
    for table in group:
        for choice in dict.fromkeys(one for training in table.trainings() for one in choices(training)):
            used.setdefault(_key(choice), {})[table.name] = None
            values.setdefault(_key(choice), {}).update(dict.fromkeys(choice.values))
    rows = [
        ["<br>".join(f"`{value}`" for value in values[path, comment]), comment, f"`{path}`", _names(names, group)]
        for (path, comment), names in used.items()
    ]
    rows = [[*row[:2], row[2].replace(f"`{paper}/", "`"), row[3]] for row in rows]
    return _table(["value", "its file says", f"`conf/experiment/{paper}/`…", "tables"], rows)


def _key(choice: Choice) -> tuple[str, str]:
    return choice.path, choice.comment


def _names(names: Iterable[str], group: Sequence[Table]) -> str:
    listed = list(names)
    return "all" if len(listed) == len(group) else ", ".join(listed)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A Markdown table; ``right`` are the columns of numbers."""
    rule = ["---:" if column in set(right) else "---" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])
