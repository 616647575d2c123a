"""The pages of studies: Jinja templates beside the studies' files, and the numbers that stand in them."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from dml.report.provenance import join_facts
from dml.report.statistics import ClassSums, adjust_p_values, bootstrap_p_value, mean_interval
from dml.runtime.configuration import key_of
from dml.runtime.errors import InputError, suggest
from dml.runtime.text import format_count, markdown_table
from dml.studies.charts import Points, draw_intervals
from dml.studies.results import TEST, Results, RowResult
from dml.studies.study import REFERENCE, Study

RESAMPLES = 10_000
"""The number of draws of the test classes for a p-value."""
LEVEL = 0.05
"""The level below which an adjusted p-value counts as a difference."""
MINUS = "−"
SIZE = re.compile(r"([\d,]+)(?: to ([\d,]+))? dimensions(?: as the validation chooses heads)?")
"""The size of vectors, as `describe_measurement` says it."""

COLUMNS = {
    "": "name",
    "recall@1": "interval recall@1",
    "MAP@R": "interval map@r",
    "difference in MAP@R": "difference map@r",
}
"""The columns of a page, unless the study's file has others, see `format_table`."""


def render(template: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """Render a template of the reference folder with some values, and the filters and functions of this module."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(REFERENCE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701  pages are Markdown
    )
    environment.filters |= {**FILTERS, **(filters or {})}
    page = environment.get_template(template).render(**values)
    return "\n".join(line.rstrip() for line in page.splitlines()).rstrip() + "\n"


def render_page(study: Study, results: Results, **values: Any) -> str:
    """Render the page of a study by its own template, else by that of all studies."""
    template = f"{study.name}.md.j2" if (REFERENCE / f"{study.name}.md.j2").exists() else "study.md.j2"
    functions = {
        "rows": partial(list_rows, study, results),
        "compared": partial(list_compared, study, results),
        "facts": describe_facts,
        "tested": describe_runs,
        "matrix": compare_pairs,
        "table": lambda rows, columns=None: format_table(columns or study.content.get("columns", COLUMNS), rows),
    }
    return render(template, **{**study.content, **functions, "study": study, "results": results, **values})


def list_rows(
    study: Study, results: Results, dataset: str, condition: str = "", stage: str = TEST, sort: str = ""
) -> list[RowResult]:
    """List the rows of a data set and a condition that have results, the best test first if a metric sorts them."""
    cells = [cell for cell in study.cells if (cell.dataset, cell.condition) == (dataset, condition)]
    if sort:
        tests = [(cell, results.find_row(cell)) for cell in cells]
        cells = [cell for cell, row in sorted(tests, key=lambda test: -test[1].tested.mean(sort) if test[1] else 0.0)]
    return [row for cell in cells if (row := results.find_row(cell, stage)) is not None]


def list_compared(
    study: Study, results: Results, dataset: str, sort: str
) -> list[tuple[RowResult, dict[str, RowResult | None]]]:
    """List the rows of the first condition that have results of others, with these: of the same overrides."""
    first, *other_conditions = study.content["conditions"]
    rows = []
    for row in list_rows(study, results, dataset, first, sort=sort):
        other_results = {
            other: results.find_row(study.by_key[dataset, other, row.cell.row]) for other in other_conditions
        }
        same = {
            name: other if other and other.overrides == row.overrides else None for name, other in other_results.items()
        }
        if any(same.values()):
            rows.append((row, same))
    return rows


def draw_conditions(study: Study, results: Results, path: Path) -> None:
    """Draw a row for each row of the study, with the difference to the first condition for each other one."""
    (dataset,), metric = study.content["datasets"], study.content["chart"]["metric"]
    rows = list_compared(study, results, dataset, metric)
    series: dict[str, Points] = {}
    for place, (clean, compared) in enumerate(rows):
        for name, row in compared.items():
            if row is not None:
                title = study.content["conditions"][name]["title"]
                series.setdefault(title, {})[place] = compute_difference(row, clean, metric)
    draw_intervals([clean.cell.row for clean, _ in rows], series, study.content["chart"]["label"], path)


def compute_difference(row: RowResult, other: RowResult, metric: str) -> tuple[float, float, float]:
    """Compute the difference of two rows in points, over the runs that both have, and its interval over the classes."""
    first, second = (result.select_runs(row.run_keys & other.run_keys).tested for result in (row, other))
    low, high = first.interval(metric, second)
    return 100 * (first.mean(metric) - second.mean(metric)), 100 * low, 100 * high


def format_difference(row: RowResult | None, other: RowResult, metric: str) -> str:
    """Format the difference of two rows; "" for a row to itself, for none, or if they share no seed."""
    if row is None or row is other or not row.run_keys & other.run_keys:
        return ""
    difference, low, high = compute_difference(row, other, metric)
    return f"{difference:+.1f} [{low:.1f}, {high:.1f}]".replace("-", MINUS)


def format_interval(row: RowResult, metric: str) -> str:
    """Format a mean in percent with its interval over the test classes."""
    low, high = row.tested.interval(metric)
    return f"{format_mean(row, metric)} [{100 * low:.1f}, {100 * high:.1f}]"


def format_mean(row: RowResult, metric: str) -> str:
    """Format a mean over the runs in percent."""
    return f"{100 * float(np.mean(row.values(metric))):.1f}"


def format_deviation(row: RowResult, metric: str) -> str:
    """Format the standard deviation of a metric between the runs."""
    values = row.values(metric)
    return f"{100 * mean_interval(values).deviation:.1f}" if len(values) > 1 else "–"


def format_seeds(row: RowResult | None, metric: str) -> str:
    """Format a mean in percent with half its interval over the runs (Student's t)."""
    values = row.values(metric) if row else []
    if not values:
        return ""
    interval = mean_interval([100 * value for value in values])
    return f"{interval.mean:.1f} ± {interval.half_width:.1f}" if interval.runs > 1 else f"{interval.mean:.1f}"


def format_code(overrides: Iterable[str]) -> str:
    """Format overrides, each as code."""
    return " ".join(f"`{override}`" for override in overrides)


def format_chosen(row: RowResult) -> str:
    """Format the overrides that a search chose, as far as the tested trainings leave them as they are."""
    replaced = set(map(key_of, row.cell.after))
    return (
        format_code(override for override in shlex.split(row.overrides) if key_of(override) not in replaced)
        or "as configured"
    )


def format_table(columns: Mapping[str, str], rows: Sequence[RowResult]) -> str:
    """Format a table with a line for each row, which is compared with the first one.

    Args:
        columns: {heading: "name", "code", "chosen" or "changed", or a kind of number and its metric, such as
            "interval map@r"; the kinds are interval, mean, deviation, seeds and difference}.
        rows: rows of the results.

    Raises:
        InputError: if there is no such kind, or no such metric.
    """
    lines = [[_format_cell(row, rows[0], *content.split(" ", 1)) for content in columns.values()] for row in rows]
    return markdown_table(
        list(columns), lines, [place for place, content in enumerate(columns.values()) if " " in content]
    )


def _format_cell(row: RowResult, first: RowResult, kind: str, metric: str = "") -> str:
    texts = {
        "name": row.cell.row,
        "code": f"`{row.cell.row}`",
        "chosen": format_chosen(row),
        "changed": format_code(row.cell.overrides),
    }
    if not metric and kind in texts:
        return texts[kind]
    if kind not in NUMBERS:
        raise InputError(f"columns: {kind} {metric}: no such kind{suggest(kind, [*texts, *NUMBERS])}")
    needs_sums = kind in ("interval", "difference")
    known = {*row.runs[0].sums, *(() if needs_sums else row.runs[0].metrics)}
    if metric not in known:
        raise InputError(f"columns: {kind} {metric}: the runs have no such metric{suggest(metric, known)}")
    return format_difference(row, first, metric) if kind == "difference" else NUMBERS[kind](row, metric)


NUMBERS: dict[str, Callable[..., str]] = {
    "interval": format_interval,
    "mean": format_mean,
    "deviation": format_deviation,
    "seeds": format_seeds,
    "difference": format_difference,
}
"""The kinds of numbers in a column, and the functions that format them."""

FILTERS: dict[str, Callable[..., Any]] = {
    **NUMBERS,
    "code": format_code,
    "chosen": format_chosen,
    "shell": shlex.split,
}


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


def describe_runs(rows: Sequence[RowResult], noun: str = "seed") -> str:
    """Return how many runs rows have, and on what they were tested: "3 seeds, 3,030 queries of 573 classes"."""
    fewest, most = (limit(len(row.runs) for row in rows) for limit in (min, max))
    runs = format_count(most, noun) if fewest == most else f"{fewest} to {most} {noun}s"
    counts = rows[0].tested.counts
    return f"{runs}, {sum(counts):,} queries of {len(counts):,} classes"


def compute_p_values(tests: Mapping[str, ClassSums], metric: str) -> dict[tuple[str, str], float]:
    """Compute the p-value of each pair of rows, corrected for the number of pairs -> {(row, other row): p}.

    ``tests`` are {row: its test}, all on the same queries.
    """
    pairs = list(combinations(tests, 2))
    p_values = [bootstrap_p_value(tests[first].draw_means(metric, tests[second], RESAMPLES)) for first, second in pairs]
    return dict(zip(pairs, adjust_p_values(p_values), strict=True))


def compare_pairs(rows: Sequence[RowResult], metric: str) -> dict[tuple[str, str], str]:
    """Format the differences of all pairs of rows with their corrected p-values; bold ones are significant.

    Returns:
        {(row, later row): the first less the second}.
    """
    tests = {row.cell.row: row.tested for row in rows}
    cells = {}
    for (first, second), p_value in compute_p_values(tests, metric).items():
        p_text = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
        text = f"{100 * (tests[first].mean(metric) - tests[second].mean(metric)):+.1f} ({p_text})".replace("-", MINUS)
        cells[first, second] = f"**{text}**" if p_value < LEVEL else text
    return cells
