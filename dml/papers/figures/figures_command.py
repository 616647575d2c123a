"""The command ``dml figures``."""

from collections.abc import Sequence
from pathlib import Path

from dml.commands.failures.error_lines import one_line_errors
from dml.commands.parsed_commands.command_parser import CommandParser
from dml.ops.filesystem.paths import expand_home
from dml.ops.libraries.extras import check_installed

DESCRIPTION = """\
Train what figures of the papers take and draw them: nra_3, nra_4 and
happier_4, which are NRA's Fig. 3 and 4 and HAPPIER's Fig. 4. Runs that are
finished are not made again.

Without --data the sweeps run on the embedded data, and the map of digits on
the digits that come with scikit-learn."""

EXAMPLES = {
    "dml figures": "trains what is missing, draws docs/images/figures/*.png",
    "dml figures nra_4": "the same for one figure",
    "dml figures --data /data": "the same on the papers' data sets; /data holds a folder for each",
    "dml figures --commands": "prints the commands, to run them elsewhere",
    "dml figures --show": "draws the finished runs",
}


def run_figures(arguments: Sequence[str]) -> None:
    """Run ``dml figures``: reproduce figures or print commands.

    Args:
        arguments: arguments of the command line.
    """
    options = _parser().parse_args(arguments)
    from dml.papers.figures.figure_reproduction import print_commands, reproduce_figures  # it takes seconds
    from dml.papers.figures.sweep_figures import find_figures
    from dml.papers.plans import Plan

    with one_line_errors():
        plan = Plan(options.outputs, options.seeds, overrides=tuple(options.set))
        figures = find_figures(options.figures, options.data)
        if options.commands:
            print_commands(figures, plan, options.data or Path())
        else:
            check_installed("matplotlib", extra="figures")
            jobs = 0 if options.show else options.jobs
            reproduce_figures(figures, plan, options.data, jobs=jobs, images=options.images)


def _parser() -> CommandParser:
    parser = CommandParser("figures", DESCRIPTION, EXAMPLES)
    parser.add_argument("figures", nargs="*", metavar="NAME", help="nra_3, happier_4 or nra_4 (default: all of them)")
    parser.add_number("--seeds", 2, "runs of each training")
    parser.add_argument("--data", type=expand_home, help="folder with the data sets' folders")
    parser.add_overrides("trainer.max_steps=100")
    parser.add_number("--jobs", 1, "runs at a time")
    parser.add_folder("--outputs", "outputs/figures", "folder for runs and numbers")
    parser.add_folder("--images", "docs/images/figures", "folder for the figures")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--commands", action="store_true", help="print the commands, and run nothing")
    action.add_argument("--show", action="store_true", help="draw the finished runs, and run nothing")
    return parser
