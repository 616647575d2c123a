"""One call of ``dml study``: trains a study, keeps its results, and shows or writes its page."""

import argparse
import shlex
from collections.abc import Iterable
from pathlib import Path

from dml.commands.error_lines import print_line
from dml.run.config_folders import CONF
from dml.runtime.errors import InputError, check_installed, suggest
from dml.runtime.files import write_text
from dml.runtime.text import write_csv
from dml.studies import claims, figures, table_pages
from dml.studies.engine import Engine
from dml.studies.pages import draw_conditions, render_page
from dml.studies.results import Result, Results, merge_results, read_results, store_results
from dml.studies.runs import Plan, format_command
from dml.studies.study import Study


class Session:
    """A study with the options of a call.

    Args:
        study: the study of the call.
        options: options of the command line, see `dml.studies.study_command.parse_options`.

    Raises:
        InputError: if an option can't be used, or stored results are damaged.
    """

    def __init__(self, study: Study, options: argparse.Namespace) -> None:
        launchers = [path.stem for path in (CONF / "launcher").glob("*.yaml")]
        if options.launcher not in launchers:
            raise InputError(f"--launcher {options.launcher}: no such choice{suggest(options.launcher, launchers)}")
        is_small, content = options.preset == "smoke", study.content
        seeds = 1 if is_small and not any(word.startswith("seeds=") for word in options.settings) else study.seeds
        outputs = (options.outputs or study.outputs) / ("smoke" if is_small else "")
        self.study = study
        self.plan = Plan(
            outputs,
            seeds,
            is_small,
            tuple(options.set),
            options.data,
            options.jobs or (2 if study.kind == "file" else 1),
            options.launcher,
            runs_copies=study.kind == "file" or (study.kind == "figure" and options.data is None),
        )
        self._docs: Path = options.docs
        self._name = study.name_results(self.plan.departures)
        self._file = (self._docs if study.kind == "file" else outputs) / f"{self._name}.parquet"
        self._others = read_results(self._docs / f"{content['of']}.parquet") if "of" in content else []
        self.engine = Engine(study, self.plan, [*read_results(self._file), *self._others])
        self._has_charts = study.kind == "figure" or bool({"claims", "chart"} & content.keys())

    def print_commands(self) -> None:
        """Print the command line of each run that is next."""
        for command in self.engine.list_commands():
            print_line(format_command(command))

    def train(self) -> bool:
        """Train what is missing -> whether a run failed."""
        if "trials" in self.study.content:
            check_installed("optuna", extra="optuna")
        if self._has_charts:
            check_installed("matplotlib", extra="figures")
        self.engine.check()
        return self.engine.train()

    def show_page(self) -> None:
        """Print the page of the results, also of runs that are finished and not stored yet."""
        results = self._select(merge_results(read_results(self._file), self._collect()))
        print_line(self._render(results))

    def write_page(self, *, may_be_empty: bool = False) -> None:
        """Store the results, and write the page with its charts; without results nothing, if that may be."""
        if self._has_charts:
            check_installed("matplotlib", extra="figures")
        study, results = self.study, self._select(store_results(self._file, self._collect()))
        if self.plan.outputs.exists():
            self.engine.discard_checkpoints()
        if may_be_empty and not results:
            return
        if study.kind == "figure":
            self._draw_figure(results)
            return
        page, path = self._render(results), self._file.with_suffix(".md")
        write_text(path, page)
        if study.kind == "table":
            write_csv(path.with_suffix(".csv"), table_pages.csv_rows(study.content["table"], results, self.plan))
            print_line(page)
            return
        if "claims" in study.content:
            claims.draw_claims(study, results, self._docs)
        if "chart" in study.content:
            draw_conditions(study, results, self._docs / "images" / f"{self._name}.png")
        print_line(f"written: {path}")

    def _render(self, results: Results) -> str:
        study = self.study
        if study.kind == "table":
            return table_pages.render_table_page(study, results, self.plan)
        if study.kind == "figure":
            return figures.render_values(figures.collect_values(study, results, self.plan)[0])
        if not results:
            raise InputError(f"{self._file}: holds no results; dml study {study.name} run makes them")
        if "claims" in study.content:
            return claims.render_claims(study, results)
        overrides = [f"--set={override}" for override in self.plan.departures]
        command = shlex.join(["dml", "study", study.name, "run", *study.changes, *overrides])
        return render_page(study, results, command=command)

    def _draw_figure(self, results: Results) -> None:
        """Draw a figure, and write its numbers to a file; without a finished run an earlier picture stays."""
        study, path = self.study, self._docs / "images" / "figures" / f"{self._name}.png"
        if not results:
            print_line(f"{study.name}: none of its runs is done; no picture is drawn")
            return
        values = figures.draw_figure(study, results, self.plan, path)
        write_csv(self._file.with_suffix(".csv"), figures.csv_rows(study, values))
        print_line(f"{path}: {study.content['title']} on {study.content['data']}, {len(results)} runs are done")

    def _collect(self) -> list[Result]:
        """Collect the results of runs that were made here."""
        return self.engine.collect() if self.plan.outputs.exists() else []

    def _select(self, results: Iterable[Result]) -> Results:
        return Results(self.engine.select_valid([*results, *self._others]))
