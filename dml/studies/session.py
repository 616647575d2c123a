"""One call of ``dml study``: trains a study, keeps its results, and shows or writes its page."""

import argparse
from dataclasses import replace
from pathlib import Path

from dml.commands.error_lines import print_line
from dml.run.config_folders import CONF
from dml.runtime.errors import InputError, check_choice
from dml.runtime.files import write_csv, write_text
from dml.studies import table_pages
from dml.studies.engine import Engine
from dml.studies.pages import render_page
from dml.studies.results import Rows, group_rows, merge_results, read_results, store_results
from dml.studies.runs import Plan, format_command
from dml.studies.study import Study


def run_action(study: Study, options: argparse.Namespace) -> bool:
    """Train a study, and show or write its page, as the options of a call say -> whether a run failed."""
    if options.preset == "smoke" and "smoke" in study.content:
        study = _try_once(study)
    plan = _make_plan(study, options)
    folder = plan.outputs if study.is_table or study.keeps_models else options.docs
    file: Path = folder / f"{study.name_results(plan.departures)}.parquet"
    engine = Engine(study, plan, read_results(file))
    if options.commands:
        for command in engine.list_commands():
            print_line(format_command(command))
        return False
    has_failed = False
    if options.action in ("run", "resume"):
        engine.check()
        has_failed = engine.train()
    made = engine.collect() if plan.outputs.exists() else []  # of the runs that were made here
    if options.action == "show":  # also runs that are finished and not stored yet
        rows = group_rows(engine.select_valid(merge_results(read_results(file), made)), study)
        print_line(_render(study, rows, plan, file))
        return False
    rows = group_rows(engine.select_valid(store_results(file, made)), study)
    if plan.outputs.exists():
        engine.discard_checkpoints()
    if rows or not has_failed:
        _write_page(study, rows, plan, file)
    return has_failed


def _make_plan(study: Study, options: argparse.Namespace) -> Plan:
    launchers = [path.stem for path in (CONF / "launcher").glob("*.yaml")]
    check_choice("--launcher", options.launcher, launchers)
    is_small = options.preset == "smoke"
    seeds = 1 if is_small and not any(word.startswith("seeds=") for word in options.settings) else study.seeds
    own_values = study.content.get("smoke", ()) if is_small else ()
    has_small_runs = bool(own_values) or not (study.is_table or study.keeps_models)
    return Plan(
        (options.outputs or study.outputs) / ("smoke" if is_small else ""),
        seeds,
        is_small and not own_values,
        (*own_values, *options.set),
        options.data,
        options.jobs or (2 if has_small_runs else 1),
        options.launcher,
    )


def _try_once(study: Study) -> Study:
    """Return the study with the first alternative of each search alone."""
    searches = [cell.search and replace(cell.search, steps=(cell.search.steps[0][:1],)) for cell in study.cells]
    cells = [replace(cell, search=search) for cell, search in zip(study.cells, searches, strict=True)]
    return replace(study, cells=tuple(cells))


def _write_page(study: Study, rows: Rows, plan: Plan, file: Path) -> None:
    page, path = _render(study, rows, plan, file), file.with_suffix(".md")
    write_text(path, page)
    if study.is_table:
        write_csv(path.with_suffix(".csv"), table_pages.csv_rows(study.content["table"], rows, plan))
    print_line(page if study.is_table else f"written: {path}")


def _render(study: Study, rows: Rows, plan: Plan, file: Path) -> str:
    if study.is_table:
        return table_pages.render_table_page(study, rows, plan)
    if not rows:
        raise InputError(f"{file}: holds no results; dml study {study.name} run makes them")
    return render_page(study, rows)
