"""The pages of studies: Jinja templates beside the studies' files, and the numbers that stand in them."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jinja2
import numpy as np

from dml.report.provenance import join_facts
from dml.report.statistics import mean_interval
from dml.runtime.configuration import key_of
from dml.runtime.errors import check_choice
from dml.runtime.text import format_count, markdown_table
from dml.studies.results import RowResult, Rows
from dml.studies.study import REFERENCE, Study

SIZE = re.compile(r"([\d,]+)(?: to ([\d,]+))? dimensions(?: as the validation chooses heads)?")
"""The size of vectors, as `describe_measurement` says it."""

COLUMNS = {
    "": "name",
    "recall@1": "interval recall@1",
    "MAP@R": "interval map@r",
    "difference in MAP@R": "difference map@r",
}
"""The columns of a page, unless the study's file has others, see `format_table`."""


def render(template: str, **values: Any) -> str:
    """Render a template of the reference folder with some values, and the kinds of numbers as filters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(REFERENCE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701  pages are Markdown
    )
    environment.filters |= NUMBERS
    page = environment.get_template(template).render(**values)
    return "\n".join(line.rstrip() for line in page.splitlines()).rstrip() + "\n"


def render_page(study: Study, found: Rows) -> str:
    """Render the page of a study by its own template, else by that of all studies."""
    template = f"{study.name}.md.j2" if (REFERENCE / f"{study.name}.md.j2").exists() else "study.md.j2"
    functions = {
        "rows": partial(list_rows, study, found),
        "facts": describe_facts,
        "tested": describe_runs,
        "table": lambda rows, columns=None: format_table(columns or study.content.get("columns", COLUMNS), rows),
    }
    return render(template, **{**study.content, **functions, "study": study})


def list_rows(study: Study, found: Rows, dataset: str, condition: str = "", sort: str = "") -> list[RowResult]:
    """List the rows of a data set and a condition that have results, the best first if a metric sorts them."""
    keys = [(dataset, condition, name) for name in dict.fromkeys(cell.row for cell in study.cells)]
    rows = [found[key] for key in keys if key in found]
    return sorted(rows, key=lambda row: -row.tested.mean(sort)) if sort else rows


def compute_difference(row: RowResult, other: RowResult, metric: str) -> tuple[float, float, float]:
    """Compute the difference of two rows in points, over the runs that both have, and its interval over the classes."""
    first, second = (result.select_runs(row.seeds & other.seeds).tested for result in (row, other))
    low, high = first.interval(metric, second)
    return 100 * (first.mean(metric) - second.mean(metric)), 100 * low, 100 * high


def format_difference(row: RowResult, other: RowResult, metric: str) -> str:
    """Format the difference of two rows; "" for a row to itself, or if they share no seed."""
    if row is other or not row.seeds & other.seeds:
        return ""
    difference, low, high = compute_difference(row, other, metric)
    return f"{difference:+.1f} [{low:.1f}, {high:.1f}]".replace("-", "−")


def format_interval(row: RowResult, metric: str) -> str:
    """Format a mean in percent with its interval over the test classes."""
    low, high = row.tested.interval(metric)
    return f"{format_mean(row, metric)} [{100 * low:.1f}, {100 * high:.1f}]"


def format_mean(row: RowResult, metric: str) -> str:
    """Format a mean over the runs in percent."""
    return f"{100 * float(np.mean(row.values(metric))):.1f}"


def format_seeds(row: RowResult, metric: str) -> str:
    """Format a mean in percent with half its interval over the runs (Student's t)."""
    interval = mean_interval([100 * value for value in row.values(metric)])
    return f"{interval.mean:.1f} ± {interval.half_width:.1f}" if interval.runs > 1 else f"{interval.mean:.1f}"


def format_chosen(row: RowResult) -> str:
    """Format the overrides that a search chose, as far as the tested trainings leave them as they are."""
    replaced = set(map(key_of, row.cell.after))
    kept = [override for override in shlex.split(row.runs[0].overrides) if key_of(override) not in replaced]
    return " ".join(f"`{override}`" for override in kept) or "as configured"


def format_table(columns: Mapping[str, str], rows: Sequence[RowResult]) -> str:
    """Format a table with a line for each row, which is compared with the first one.

    The columns are {heading: "name", "code", "chosen" or "configuration", or a kind of number and its metric, such as
    "interval map@r"}; the kinds are interval, mean, seeds and difference.
    """
    lines = [[_format_cell(row, rows[0], *content.split(" ", 1)) for content in columns.values()] for row in rows]
    return markdown_table(
        list(columns), lines, [place for place, content in enumerate(columns.values()) if " " in content]
    )


def _format_cell(row: RowResult, first: RowResult, kind: str, metric: str = "") -> str:
    texts = {"name": row.cell.row, "code": f"`{row.cell.row}`", "chosen": format_chosen(row)}
    texts["configuration"] = f"`{row.runs[0].configuration}`"
    if not metric and kind in texts:
        return texts[kind]
    check_choice("columns", kind, [*texts, *NUMBERS])
    needs_sums = kind in ("interval", "difference")
    check_choice(f"columns.{kind}", metric, sorted({*row.runs[0].sums, *(() if needs_sums else row.runs[0].metrics)}))
    return format_difference(row, first, metric) if kind == "difference" else NUMBERS[kind](row, metric)


NUMBERS: dict[str, Callable[..., str]] = {
    "interval": format_interval,
    "mean": format_mean,
    "seeds": format_seeds,
    "difference": format_difference,
}
"""The kinds of numbers in a column, and the functions that format them."""


def describe_facts(rows: Sequence[RowResult], mark: str = "`") -> str:
    """Return sentences on what the metrics of rows are of, with the smallest and the largest size of their vectors."""
    facts_by_name = {f"{mark}{row.cell.row}{mark}": row.facts for row in rows}
    vectors = " ".join(facts.get("vector", "") for facts in facts_by_name.values())
    sizes = sorted({int(size.replace(",", "")) for match in SIZE.findall(vectors) for size in match if size})
    dimensions = " to ".join(f"{size:,}" for size in dict.fromkeys((*sizes[:1], *sizes[-1:]))) + " dimensions"
    for facts in facts_by_name.values():
        kinds = dict.fromkeys(SIZE.sub(dimensions, facts.get("vector", "")).split(" or "))
        facts |= {"vector": " or ".join(kinds)} if sizes else {}
    return join_facts(facts_by_name)


def describe_runs(rows: Sequence[RowResult]) -> str:
    """Return how many runs rows have, and on what they were tested: "3 seeds, 3,030 queries of 573 classes"."""
    fewest, most = (limit(len(row.runs) for row in rows) for limit in (min, max))
    runs = format_count(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
    counts = rows[0].tested.counts
    return f"{runs}, {sum(counts):,} queries of {len(counts):,} classes"
