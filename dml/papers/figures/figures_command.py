"""The command ``dml figures``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dml.commands.failures.error_lines import one_line_errors, print_line
from dml.commands.parsed_commands.command_parser import CommandParser
from dml.ops.errors import InputError, suggest
from dml.ops.filesystem.paths import expand_home
from dml.ops.libraries.extras import check_installed

DESCRIPTION = """\
Draw figures of the papers. nra_3, nra_4 and happier_4 are trained first; runs
that are finished are not made again. Without --data the sweeps run on the
embedded data, and the map of digits on the digits that come with
scikit-learn. All others are pictures of trained models, drawn of any finished
runs: sheets of queries, t-SNE, class means, errors by severity."""

EXAMPLES = {
    "dml figures --list": "lists all figures",
    "dml figures": "trains what is missing of nra_3, nra_4, happier_4, draws docs/images/figures/*.png",
    "dml figures nra_4": "the same for one figure",
    "dml figures rll_5 rll_6 outputs/RUN": "draws two figures of a run: outputs/figures/rll_5.png, rll_6.png",
    "dml figures lns_3.8 outputs/RUN_A outputs/RUN_B": "draws where the second run finds more than the first",
    "dml figures --data /data": "the same on the papers' data sets; /data holds a folder for each",
    "dml figures --commands": "prints the commands, to run them elsewhere",
    "dml figures --show": "draws the finished runs",
}


def run_figures(arguments: Sequence[str]) -> None:
    """Run ``dml figures``: list figures, draw them of runs, reproduce them, or print commands.

    Args:
        arguments: arguments of the command line.
    """
    options = _parser().parse_args(arguments)
    from dml.papers.figures.sweep_figures import find_figures, read_entries  # after --help: it takes a second

    with one_line_errors():
        entries = read_entries()
        if options.list:
            print_line("\n".join(f"{name:10} {entry['title']}: {entry['shows']}" for name, entry in entries.items()))
            return
        names, folders = _sort_arguments(options.figures, entries)
        if not options.commands:
            check_installed("matplotlib", extra="figures")
        if folders:
            from dml.papers.figures.drawings import draw_run_figures

            draw_run_figures({name: entries[name] for name in names}, folders, options.outputs)
            return
        from dml.papers.figures.figure_reproduction import print_commands, reproduce_figures  # it takes seconds
        from dml.papers.plans import Plan

        plan = Plan(options.outputs, options.seeds, overrides=tuple(options.set))
        figures = find_figures(names, options.data)
        if options.commands:
            print_commands(figures, plan, options.data or Path())
        else:
            jobs = 0 if options.show else options.jobs
            reproduce_figures(figures, plan, options.data, jobs=jobs, images=options.images)


def _sort_arguments(arguments: Sequence[str], entries: Mapping[str, Any]) -> tuple[list[str], list[Path]]:
    """Return the names of figures among some arguments, and the folders of runs.

    Raises:
        InputError: if an argument is neither, or figures that are trained and figures of runs are mixed up.
    """
    names = {argument: argument.replace("-", "_") for argument in arguments}
    for argument, name in names.items():
        if name not in entries and not expand_home(argument).is_dir():
            raise InputError(f"{argument}: no figure of this name, and no folder of a run{suggest(name, entries)}")
    folders = [expand_home(argument) for argument, name in names.items() if name not in entries]
    figures = [name for name in names.values() if name in entries]
    are_of_runs = ["draws" in entries[name] for name in figures]
    if not (are_of_runs and all(are_of_runs)) if folders else any(are_of_runs):
        raise InputError(f"{' '.join(arguments)}: figures of runs take folders, as in dml figures rll_5 outputs/RUN")
    return figures, folders


def _parser() -> CommandParser:
    parser = CommandParser("figures", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "figures", nargs="*", metavar="NAME | RUN", help="figures (default: all that are trained), and folders of runs"
    )
    parser.add_argument("--list", action="store_true", help="list all figures")
    parser.add_number("--seeds", 2, "runs of each training")
    parser.add_argument("--data", type=expand_home, help="folder with the data sets' folders")
    parser.add_overrides("trainer.max_steps=100")
    parser.add_number("--jobs", 1, "runs at a time")
    parser.add_folder("--outputs", "outputs/figures", "folder for runs and numbers, and for figures of runs")
    parser.add_folder("--images", "docs/images/figures", "folder for the trained figures")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--commands", action="store_true", help="print the commands, and run nothing")
    action.add_argument("--show", action="store_true", help="draw the finished runs, and run nothing")
    return parser
