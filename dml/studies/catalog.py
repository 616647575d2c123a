"""All studies by name: the files of the reference folder, and the papers' tables and figures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dml.run.config_folders import quote
from dml.runtime.errors import InputError, suggest
from dml.runtime.reading import parse_yaml
from dml.studies.paper_tables import PAPERS, read_tables
from dml.studies.study import REFERENCE, Cell, Study, Training, apply_settings, read_study

STUDIES = {
    "claims": "the papers' claims, in a small setting",
    "leaderboard": "every loss after the same search",
    "protocol": "losses by cross-validation, with one look at the test classes",
    "ablation": "one part of the default changed at a time",
    "robustness": "what losses lose by wrong labels and long tails",
}
"""The studies of this project, and what they compare."""

GROUPS = ("tables", "figures")
"""Names of several studies."""


def find_studies(name: str | None, settings: Sequence[str] = (), data: Path | None = None) -> list[Study]:
    """Find the studies that a name stands for.

    Args:
        name: name of a study, a table, a figure, a paper or a group; the path of a study's file; None for all. Several
            names have commas between them.
        settings: changes of the study, see `dml.studies.study.read_study`; of tables and figures only "seeds=5".
        data: folder that holds the folders of the data sets; None if the user gave none.

    Raises:
        InputError: if nothing has the name, or a setting can't be used.
    """
    if name is None:
        file_studies = [read_study(REFERENCE / f"{study}.yaml") for study in STUDIES]
        return [*file_studies, *(table.make_study() for table in read_tables()), *read_figures(data)]
    if name in STUDIES or name.endswith((".yaml", ".yml")):
        return [read_study(REFERENCE / f"{name}.yaml" if name in STUDIES else Path(name), settings, data)]
    if "," in name:
        return [study for part in name.split(",") for study in find_studies(part, settings, data)]
    figures = list(read_figures(data))
    label = name.removeprefix("table-")  # as targets of make begin
    studies = [figure for figure in figures if name in ("figures", figure.name)]
    studies = studies or [table.make_study() for table in read_tables() if label in ("tables", table.paper, str(table))]
    if not studies:
        names = [*STUDIES, *GROUPS, *PAPERS, *map(str, read_tables()), *(figure.name for figure in figures)]
        raise InputError(f"{name}: no study of this name{suggest(name, names)}; dml study list lists all")
    content = {"seeds": studies[0].seeds}
    apply_settings(content, settings, {})
    return [replace(study, seeds=content["seeds"]) for study in studies]


def read_figures(data: Path | None) -> Iterator[Study]:
    """Read the papers' figures, each in the paper's setting if its data is there, else in the small setting.

    Those of the kind "run_figure" are drawn of any runs, and train nothing.
    """
    entries: Mapping[str, Any] = parse_yaml((REFERENCE / "figures.yaml").read_text(encoding="utf-8"), with_aliases=True)
    for name, entry in entries.items():
        if "parts" not in entry:
            yield Study(name, "run_figure", (), entry)
            continue
        setting_name, overrides = _find_setting(entry["paper"].get("folders"), data)
        setting = entry[setting_name]
        parts = {part: plot | {"curves": plot["curves"][setting_name]} for part, plot in entry["parts"].items()}
        cells = [
            Cell(setting["data"], str(point), Training.parse(setting["run"].format(value)).extended(overrides), part)
            for part, plot in parts.items()
            for point, value in plot["points"].items()
        ]
        yield Study(
            name=name,
            kind="figure",
            cells=tuple(cells),
            content=entry | {"parts": parts, "data": setting["data"]},
            metrics=tuple({metric for plot in parts.values() for metric in plot["curves"].values()}),
            keeps_checkpoints=True,
            seeds=2,
            outputs=Path("outputs/figures"),
        )


def _find_setting(folders: Sequence[str] | None, data: Path | None) -> tuple[str, tuple[str, ...]]:
    """Find the setting to draw a figure in, and the override that names the folder of its data, if one is needed.

    ``folders`` may hold the paper's data below ``data``; without any, the runs find the data by themselves.
    """
    if data is None:
        return "small", ()
    if folders is None:
        return "paper", ()
    for folder in folders:
        if (data / folder).is_dir():
            return "paper", (f"dataset.root={quote(data / folder)}",)
    return "small", ()


def format_list(studies: Sequence[Study]) -> str:
    """Format a line for each study: its cells, of a table its numbers, and its tested runs; searches add to these."""
    lines = [f"{'':22}{'cells':>6}{'runs':>6}"]
    for study in studies:
        is_table = study.kind == "table"
        name, cells = f"{'table-' * is_table}{study.name}", study.content["table"].trained if is_table else study.cells
        runs = study.seeds * len({training for cell in study.cells for _, training in cell.divide(cell.after)})
        texts = (study.content.get("title"), study.content.get("shows"), STUDIES.get(study.name))
        about = ": ".join(filter(None, texts))
        lines.append(f"{name:22}{len(cells):6}{runs:6}  {about}".rstrip())
    return "\n".join([*lines, "Runs that several studies need are made once. dml study NAME show says which are done."])
