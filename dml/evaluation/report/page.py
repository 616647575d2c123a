"""The pages themselves."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dml.data.images import read_image
from dml.evaluation.report.confusion import confusions
from dml.evaluation.report.curves import charts
from dml.evaluation.report.metrics import headlines, metric_tables
from dml.evaluation.report.run import Run
from dml.evaluation.report.scatter import scatter
from dml.evaluation.report.sheets import score_of, sheets
from dml.evaluation.report.side_by_side import (
    aligned,
    changed,
    differences,
    outcomes,
    part_differences,
    settings_that_differ,
)
from dml.evaluation.report.tiles import CELL, COLUMNS, ReadPicture, Tiles

ASSETS = "assets"


def run_report(run: Run, read: ReadPicture = read_image) -> str:
    """A run as one HTML file that needs no other: the same run gives the same text.

    Args:
        run: what is shown.
        read: reads the pictures, of the paths in ``run.queries``.

    Raises:
        InputError: if a picture can't be read.
    """
    tiles, table = Tiles(), run.queries
    content = {
        "run": run,
        "facts": run.facts(),
        "classes": len(np.unique(table.labels[:, 0])),
        "headlines": headlines(run),
        "tables": metric_tables(run),
        "charts": charts(run.history, table.levels, run.metrics.get("step")),
        "score": score_of(table).name,
        "sheets": sheets(table, tiles),
        "map": scatter(table, tiles),
        "confusions": confusions(table, tiles),
    }
    return _render("run.html.j2", content, tiles, read)


def comparison_report(a: Run, b: Run, read: ReadPicture = read_image) -> str:
    """Two runs on the same queries side by side, as one HTML file that needs no other.

    Raises:
        InputError: if the queries differ, or a picture can't be read.
    """
    b, tiles = aligned(a, b), Tiles()
    facts = [run.facts() for run in (a, b)]
    content = {
        "runs": (a, b),
        "facts": {name: [own.get(name, "–") for own in facts] for name in dict.fromkeys([*facts[0], *facts[1]])},
        "levels": a.queries.levels,
        "differences": differences(a, b),
        "parts": part_differences(a, b),
        "outcomes": outcomes(a, b),
        "changed": changed(a, b, tiles),
        "settings": settings_that_differ(a, b),
    }
    return _render("comparison.html.j2", content, tiles, read)


def _render(template: str, content: Mapping[str, Any], tiles: Tiles, read: ReadPicture) -> str:
    environment = Environment(
        loader=PackageLoader("dml.evaluation", ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    assets = resources.files("dml.evaluation") / ASSETS
    style, script = (Markup((assets / name).read_text(encoding="utf-8")) for name in ("report.css", "report.js"))  # noqa: S704
    sheet = {"uri": tiles.sheet(read), "cell": CELL, "columns": COLUMNS, "rows": tiles.rows}
    return environment.get_template(template).render(content, style=style, script=script, sheet=sheet)
