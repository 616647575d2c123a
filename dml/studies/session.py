"""One call of ``dml study``: trains a study, keeps its results, and shows or writes its page."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from dml.commands.error_lines import print_line
from dml.run.config_folders import CONF
from dml.runtime.errors import InputError, suggest
from dml.runtime.files import write_text
from dml.runtime.text import write_csv
from dml.studies import table_pages
from dml.studies.engine import Engine
from dml.studies.pages import render_page
from dml.studies.results import Result, Results, merge_results, read_results, store_results
from dml.studies.runs import Plan, format_command
from dml.studies.study import Study


class Session:
    """A study with the options of a call."""

    def __init__(self, study: Study, options: argparse.Namespace) -> None:
        launchers = [path.stem for path in (CONF / "launcher").glob("*.yaml")]
        if options.launcher not in launchers:
            raise InputError(f"--launcher {options.launcher}: no such choice{suggest(options.launcher, launchers)}")
        is_small = options.preset == "smoke"
        seeds = 1 if is_small and not any(word.startswith("seeds=") for word in options.settings) else study.seeds
        outputs = (options.outputs or study.outputs) / ("smoke" if is_small else "")
        self.study = study
        self.plan = Plan(
            outputs,
            seeds,
            is_small,
            tuple(options.set),
            options.data,
            options.jobs or (1 if study.is_table else 2),
            options.launcher,
            runs_copies=not study.is_table,
        )
        name = study.name_results(self.plan.departures)
        self._file: Path = (outputs if study.is_table else options.docs) / f"{name}.parquet"
        self.engine = Engine(study, self.plan, read_results(self._file))

    def print_commands(self) -> None:
        """Print the command line of each run that is next."""
        for command in self.engine.list_commands():
            print_line(format_command(command))

    def train(self) -> bool:
        """Train what is missing -> whether a run failed."""
        self.engine.check()
        return self.engine.train()

    def show_page(self) -> None:
        """Print the page of the results, also of runs that are finished and not stored yet."""
        results = self._select(merge_results(read_results(self._file), self._collect()))
        print_line(self._render(results))

    def write_page(self, *, may_be_empty: bool = False) -> None:
        """Store the results, and write the page; without results nothing, if that may be."""
        results = self._select(store_results(self._file, self._collect()))
        if self.plan.outputs.exists():
            self.engine.discard_checkpoints()
        if may_be_empty and not results:
            return
        page, path = self._render(results), self._file.with_suffix(".md")
        write_text(path, page)
        if self.study.is_table:
            write_csv(path.with_suffix(".csv"), table_pages.csv_rows(self.study.content["table"], results, self.plan))
            print_line(page)
        else:
            print_line(f"written: {path}")

    def _render(self, results: Results) -> str:
        if self.study.is_table:
            return table_pages.render_table_page(self.study, results, self.plan)
        if not results:
            raise InputError(f"{self._file}: holds no results; dml study {self.study.name} run makes them")
        return render_page(self.study, results)

    def _collect(self) -> list[Result]:
        """Collect the results of runs that were made here."""
        return self.engine.collect() if self.plan.outputs.exists() else []

    def _select(self, results: Iterable[Result]) -> Results:
        return Results(self.engine.select_valid(results))
