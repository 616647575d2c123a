"""The command ``dml study``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dml.commands.arguments import quote_paths
from dml.commands.command_parser import CommandParser, positive_number
from dml.commands.error_lines import one_line_errors, print_line
from dml.runtime.errors import InputError, check_installed, suggest
from dml.runtime.files import write_text
from dml.runtime.paths import expand_home
from dml.studies.catalog import find_studies, format_list
from dml.studies.study import Study

ACTIONS = ("list", "show", "run", "resume", "page")

DESCRIPTION = """\
Train what a study compares, and write its page. A study is a table of a paper
(rll-I), all tables of a paper (rll) or all of them (tables), a figure (nra_3)
or all of them (figures), claims, leaderboard, ablation, robustness, protocol,
or a YAML file of yours; reproducibility is a page without trainings. Runs that
are finished, or whose results are stored, are not made again. Figures of
trained models, such as rll_5, are drawn of the runs whose folders are named.

  list     the studies of this name; dml study list lists all
  show     print the page of the results, and train nothing (the default)
  run      train what is missing, and write the page; resume is the same
  page     write the page of the results, and train nothing

NAME=VALUE changes a value of the study's file, or selects of it: seeds=5,
rows=rll,nra*, conditions=whole, claims=1,2."""

EXAMPLES = {
    "dml study rll_5,rll_6 outputs/RUN": "draws two figures of a run into outputs/figures",
    "dml study rll-I run --data /data": "trains what is missing or was interrupted, prints the table",
    "dml study rll-I run --preset smoke": "trains small on the embedded data, in minutes",
    "dml study leaderboard run rows=rll,circle": "two losses, on the emoji",
    "dml study claims run claims=1,2 --data /data": "two claims, on the photographs of /data/grocery too",
    "dml study protocol run rows=rll,nra folds=3": "its results have a name of their own",
}


def run_study(arguments: Sequence[str]) -> None:
    """Run ``dml study``; the exit code is 2 if a run failed."""
    options = parse_options(arguments)
    has_failed = False
    with one_line_errors():
        if options.data and not options.commands and not options.data.is_dir():
            raise InputError(f"--data {options.data}: no such folder; it holds a folder for each data set")
        studies = find_studies(options.name, options.settings, options.data)
        if options.action == "list":
            print_line(format_list(studies))
            return
        if options.name == "figures":
            studies = [study for study in studies if study.cells]
        if _are_of_runs(studies, options.folders, options.name):
            from dml.studies.figures import draw_run_figures  # after --help and list: it takes seconds

            check_installed("matplotlib", extra="figures")
            figures = {study.name: study.content for study in studies}
            draw_run_figures(figures, options.folders, options.outputs or Path("outputs/figures"))
            return
        for study in studies:
            try:
                has_failed |= _run_action(study, options)
            except InputError as error:
                if len(studies) == 1:
                    raise
                sys.stderr.write(f"error: {error}\n")
                has_failed = True
    if has_failed:
        sys.exit(2)


def _are_of_runs(studies: Sequence[Study], folders: Sequence[Path], name: str) -> bool:
    """Return whether studies are figures of runs; these, and no others, have folders of runs."""
    are_of_runs = [study.kind == "run_figure" for study in studies]
    if not (folders and all(are_of_runs)) and (folders or any(are_of_runs)):
        text = " ".join([name, *map(str, folders)])
        raise InputError(f"{text}: figures of runs, and no others, take folders, as in dml study rll_5 outputs/RUN")
    return bool(folders)


def _run_action(study: Study, options: argparse.Namespace) -> bool:
    """Train a study, and show or write its page -> whether a run failed."""
    if study.kind == "reproducibility":
        from dml.studies.reproducibility import render_reproducibility_page  # after --help: it takes seconds

        page, path = render_reproducibility_page(), options.docs / "reproducibility.md"
        if options.action == "show":
            print_line(page)
        else:
            write_text(path, page)
            print_line(f"written: {path}")
        return False
    from dml.studies.session import Session  # after --help and list: it takes seconds

    session = Session(study, options)
    if options.commands:
        session.print_commands()
        return False
    has_failed = session.train() if options.action in ("run", "resume") else False
    if options.action == "show":
        session.show_page()
    else:
        session.write_page(may_be_empty=has_failed)
    return has_failed


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the command; without an action, the study is shown, and without a name all are listed."""
    parser = CommandParser("study", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "name", nargs="?", default="list", metavar="STUDY", help="name of a study, or the path of its file"
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help=f"{', '.join(ACTIONS)}; NAME=VALUE; folders of runs")
    parser.add_argument("--data", type=expand_home, metavar="FOLDER", help="folder with the data sets and weights/")
    parser.add_argument(
        "--jobs",
        type=positive_number,
        metavar="N",
        help="runs at a time; with several, each has one thread (default: 1, for studies of a file 2)",
    )
    parser.add_argument(
        "--set",
        action="append",
        type=lambda text: quote_paths([text])[0],
        default=[],
        metavar="KEY=VALUE",
        help="override of all trainings, such as trainer.precision=bf16-mixed; may be repeated",
    )
    parser.add_argument(
        "--preset", choices=["smoke"], help="train small on the embedded data, a thousandth of the steps"
    )
    parser.add_argument("--launcher", default="basic", help="what begins runs: basic, joblib, submitit or ray")
    parser.add_argument(
        "--outputs", type=expand_home, metavar="FOLDER", help="folder for runs (default: outputs/STUDY)"
    )
    parser.add_argument(
        "--docs",
        type=expand_home,
        default=Path("docs"),
        metavar="FOLDER",
        help="folder for the page and its results; those of tables are in --outputs (default: %(default)s)",
    )
    parser.add_argument(
        "-n", "--commands", action="store_true", help="print the commands of the next runs, and run none"
    )
    options = parser.parse_intermixed_args(arguments)
    words = options.words if options.name != "list" else ["list", *options.words]
    options.name = None if options.name == "list" else options.name
    options.action = words[0] if words and words[0] in ACTIONS else "show"
    other_words = words[1:] if words and words[0] in ACTIONS else words
    options.settings = [word for word in other_words if "=" in word]
    options.folders = [expand_home(word) for word in other_words if "=" not in word]
    if wrong := [str(folder) for folder in options.folders if not folder.is_dir()]:
        parser.error(f"{wrong[0]}: no such action, and no folder of a run{suggest(wrong[0], ACTIONS)}")
    return options
