"""All studies by name: those of the reference folder, and the papers' tables."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dml.runtime.errors import InputError, suggest
from dml.studies.paper_tables import PAPERS, read_tables
from dml.studies.study import REFERENCE, Study, apply_settings, read_study

STUDIES = {
    "leaderboard": "every loss after the same search",
    "benchmark": "five losses with pretrained networks on public data sets",
}
"""The studies of this project that compare trainings, and what they compare."""

TABLES = "tables"
"""The name of the tables of all papers."""


def find_studies(name: str | None, settings: Sequence[str] = (), data: Path | None = None) -> list[Study]:
    """Find the studies that names, with commas between them, stand for; None is all of them.

    A name is that of a study, a table, a paper or of all tables, or the path of a study's file. Tables have the setting
    "seeds=5" alone; the others are `read_study`'s.
    """
    if name is None:
        return [*map(_read_own, STUDIES), *(table.make_study() for table in read_tables())]
    if name in STUDIES:
        return [_read_own(name, settings, data)]
    if name.endswith((".yaml", ".yml")):
        return [read_study(Path(name), settings, data)]
    if "," in name:
        return [study for part in name.split(",") for study in find_studies(part, settings, data)]
    label = name.removeprefix("table-")  # as targets of make begin
    studies = [table.make_study() for table in read_tables() if label in (TABLES, table.paper, str(table))]
    if not studies:
        names = [*STUDIES, TABLES, *PAPERS, *map(str, read_tables())]
        raise InputError(f"{name}: no study of this name{suggest(name, names)}; dml study list lists all")
    content = {"seeds": studies[0].seeds}
    apply_settings(content, settings, {})
    return [replace(study, seeds=content["seeds"]) for study in studies]


def _read_own(name: str, settings: Sequence[str] = (), data: Path | None = None) -> Study:
    return read_study(REFERENCE / f"{name}.yaml", settings, data)


def format_list(studies: Sequence[Study]) -> str:
    """Format a line for each study: its cells, of a table its numbers, and its tested runs; searches add to these."""
    lines = [f"{'':22}{'cells':>6}{'runs':>6}"]
    for study in studies:
        name = f"{'table-' * study.is_table}{study.name}"
        cells = study.content["table"].trained if study.is_table else study.selected
        runs = study.seeds * len({cell.training.extended(cell.after) for cell in study.selected})
        lines.append(f"{name:22}{len(cells):6}{runs:6}  {STUDIES.get(study.name, '')}".rstrip())
    return "\n".join([*lines, "Runs that several studies need are made once. dml study NAME show says which are done."])
