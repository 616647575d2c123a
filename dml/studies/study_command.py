"""The command ``dml study``, and the studies that it knows: those of the reference folder, and the papers' tables."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dml.commands.arguments import quote_paths
from dml.commands.command_parser import CommandParser, positive_number
from dml.commands.error_lines import one_line_errors, print_line
from dml.runtime.errors import InputError, suggest
from dml.runtime.files import expand_home
from dml.studies.paper_tables import PAPERS, read_tables
from dml.studies.study import REFERENCE, Study, apply_settings, read_study

STUDIES = {
    "leaderboard": "every loss after the same search",
    "benchmark": "five losses with pretrained networks on public data sets",
}
"""The studies of this project that compare trainings, and what they compare."""

TABLES = "tables"
"""The name of the tables of all papers."""

ACTIONS = ("list", "show", "run", "resume", "page")

DESCRIPTION = """\
Train what a study compares, and write its page. A study is a table of a paper
(rll-I), all tables of a paper (rll) or all of them (tables), leaderboard, or a
YAML file of yours. Runs that are finished, or whose results are stored, are
not made again.

  list     the studies of this name; dml study list lists all
  show     print the page of the results, and train nothing (the default)
  run      train what is missing, and write the page; resume is the same
  page     write the page of the results, and train nothing

NAME=VALUE changes a value of the study's file, or selects of it: seeds=5,
rows=rll,nra*, conditions=whole."""

EXAMPLES = {
    "dml study rll-I run --data /data": "trains what is missing or was interrupted, prints the table",
    "dml study rll-I run --preset smoke": "trains small on the embedded data, in minutes",
    "dml study leaderboard run rows=rll,circle": "two losses, on the emoji",
    "dml study leaderboard run conditions=whole --data /data": "on the photographs of /data/grocery too",
}


def run_study(arguments: Sequence[str]) -> None:
    """Run ``dml study``; the exit code is 2 if a run failed."""
    options = parse_options(arguments)
    has_failed = False
    with one_line_errors():
        studies = find_studies(options.name, options.settings, options.data)
        if options.action == "list":
            print_line(format_list(studies))
            return
        from dml.studies.session import run_action  # after --help and list: it takes seconds

        for study in studies:
            try:
                has_failed |= run_action(study, options)
            except InputError as error:
                if len(studies) == 1:
                    raise
                sys.stderr.write(f"error: {error}\n")
                has_failed = True
    if has_failed:
        sys.exit(2)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the command; without an action, the study is shown, and without a name all are listed."""
    parser = CommandParser("study", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("name", nargs="?", default="list", metavar="STUDY", help="name of a study, or the path of its file")
    add("words", nargs="*", metavar="WORD", help=f"{', '.join(ACTIONS)}; NAME=VALUE")
    add("--data", type=expand_home, metavar="FOLDER", help="folder with the data sets and weights/")
    at_a_time = "runs at a time; with several, each has one thread (default: 2 of small ones, else 1)"
    add("--jobs", type=positive_number, metavar="N", help=at_a_time)
    override = "override of all trainings, such as trainer.precision=bf16-mixed; may be repeated"
    add("--set", action="append", type=_quote, default=[], metavar="KEY=VALUE", help=override)
    add("--preset", choices=["smoke"], help="train small on the embedded data, a thousandth of the steps")
    add("--launcher", default="basic", help="what begins runs: basic, joblib, submitit or ray")
    add("--outputs", type=expand_home, metavar="FOLDER", help="folder for runs (default: outputs/STUDY)")
    pages = "folder for the page and its results; those of tables and the benchmark are in --outputs (default: docs)"
    add("--docs", type=expand_home, default=Path("docs"), metavar="FOLDER", help=pages)
    add("-n", "--commands", action="store_true", help="print the commands of the next runs, and run none")
    options = parser.parse_intermixed_args(arguments)
    words = options.words if options.name != "list" else ["list", *options.words]
    options.name = None if options.name == "list" else options.name
    options.action = words[0] if words and words[0] in ACTIONS else "show"
    other_words = words[1:] if words and words[0] in ACTIONS else words
    options.settings = [word for word in other_words if "=" in word]
    if wrong := [word for word in other_words if "=" not in word]:
        parser.error(f"{wrong[0]}: no such action{suggest(wrong[0], ACTIONS)}")
    return options


def _quote(override: str) -> str:
    return quote_paths([override])[0]


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
