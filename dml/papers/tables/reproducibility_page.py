"""docs/reproducibility.md: which numbers of each table can be trained as the paper states, and what differs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from dml.ops.text.text_tables import markdown_table
from dml.papers.tables.paper_tables import PAPERS, Cell, Table, read_cells, read_tables
from dml.papers.tables.reproducibility import Difference, UnstatedValue, find_differences, find_unstated_values

HEAD = """# What can be reproduced exactly, and what differs

`make reproducibility` writes this page from the comments of the experiments, below
[conf/experiment](../conf/experiment), and from [dml/papers/reference](../dml/papers/reference). A test
holds the page to them.

The columns count numbers of the papers' tables. *Quoted* numbers come from other papers, and nothing trains them. A
*trained* number has an experiment; `make table-rll-I` runs those of a table, see [papers.md](papers.md). It is *as
stated* if the experiment has every value that the paper states, and nothing in the last column touches it. That is the
protocol, not the result: nobody has run these tables yet, except small. The papers also leave values unsaid; what was
chosen for those stands below, paper by paper.

## Tables
"""

UNSTATED_HEAD = """\
The values that {paper} doesn't state, with what their files say of them. "The release" is the code that its
authors published; "ours" is a choice of this project."""

MAX_ROWS_NAMED = 4
"""The most rows of a table that are named one by one as those that a difference touches."""


def render_reproducibility_page() -> str:
    """Render the whole page."""
    header = ["table", "data sets", "quoted", "trained", "as stated", "differs from the paper's protocol, and why"]
    parts = [HEAD, markdown_table(header, map(_table_row, read_tables()), right=(2, 3, 4))]
    for paper, group in groupby(read_tables(), key=lambda table: table.paper):
        parts += [f"\n## What {PAPERS[paper]} leaves unsaid\n", UNSTATED_HEAD.format(paper=PAPERS[paper]), ""]
        parts.append(_unstated_values(paper, list(group)))
    return "\n".join(parts) + "\n"


def _table_row(table: Table) -> list[str]:
    quoted = sum(cell.is_quoted and (cell.paper, cell.table) == (table.paper, table.name) for cell in read_cells())
    differences_by_cell = {cell: find_differences(table, cell) for cell in table.cells}
    as_stated = sum(not differences for differences in differences_by_cell.values())
    cells_by_difference: dict[Difference, list[Cell]] = {}
    for cell, differences in differences_by_cell.items():
        for difference in differences:
            cells_by_difference.setdefault(difference, []).append(cell)
    sentences = [_describe(table, difference, cells) for difference, cells in cells_by_difference.items()]
    counts = [str(number) if number else "–" for number in (quoted, len(table.cells), as_stated)]
    datasets = ", ".join(dict.fromkeys(cell.dataset for cell in table.cells))
    return [f"{PAPERS[table.paper]} {table.name}", datasets, *counts, "<br>".join(sentences)]


def _describe(table: Table, difference: Difference, touched: Sequence[Cell]) -> str:
    """Return the difference's sentence behind the metrics and rows that it touches, if it doesn't touch all."""
    possible = [cell for cell in table.cells if difference.touches(cell)]
    scope = [f"`{metric}`" for metric in difference.metrics if len(possible) < len(table.cells)]
    if len(touched) < len(possible):
        touched_rows, possible_rows = (Counter(cell.row for cell in cells) for cells in (touched, possible))
        names = [
            f"`{row}`" if count == possible_rows[row] else f"`{row}` on {', '.join(_datasets(row, touched))}"
            for row, count in touched_rows.items()
        ]
        all_names = ", ".join(names)
        scope.append(all_names if len(names) <= MAX_ROWS_NAMED else f"{len(names)} of {len(possible_rows)} rows")
    text = difference.text
    return f"{', '.join(scope)}: {text[0].lower()}{text[1:]}" if scope else text[0].upper() + text[1:]


def _datasets(row: str, cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.dataset for cell in cells if cell.row == row))


def _unstated_values(paper: str, tables: Sequence[Table]) -> str:
    """Return a table of a paper's unstated values, with a row for each comment."""
    table_names: dict[tuple[str, str], dict[str, None]] = {}  # the inner dictionaries are ordered sets
    overrides: dict[tuple[str, str], dict[str, None]] = {}
    for table in tables:
        values = (value for training in table.trainings for value in find_unstated_values(training))
        for value in dict.fromkeys(values):
            table_names.setdefault(_comment_key(value), {})[table.name] = None
            overrides.setdefault(_comment_key(value), {}).update(dict.fromkeys(value.overrides))
    rows = [
        [
            "<br>".join(f"`{override}`" for override in overrides[path, comment]),
            comment,
            f"`{path.removeprefix(f'{paper}/')}`",
            "all" if len(names) == len(tables) else ", ".join(names),
        ]
        for (path, comment), names in table_names.items()
    ]
    return markdown_table(["value", "its file says", f"`conf/experiment/{paper}/`…", "tables"], rows)


def _comment_key(value: UnstatedValue) -> tuple[str, str]:
    return value.path, value.comment
