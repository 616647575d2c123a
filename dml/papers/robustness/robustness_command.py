"""The command ``dml robustness``."""

import sys
from collections.abc import Sequence

from dml.commands.failures.error_lines import one_line_errors, print_line
from dml.commands.parsed_commands.command_parser import CommandParser, add_contest_options, parse_names
from dml.ops.libraries.extras import check_installed

DESCRIPTION = """\
Train the losses of the leaderboard with wrong labels and with long-tailed
classes, and write robustness.md with what each of them loses. Runs that are
finished are not made again, so it can be stopped and goes on. All losses take
about an hour on two cores."""

EXAMPLES = {
    "dml robustness": "all losses of docs/leaderboard.json",
    "dml robustness --losses rll,circle": "some losses alone",
    "dml robustness --show": "writes the page of robustness.json, and trains nothing",
}


def run_robustness(arguments: Sequence[str]) -> None:
    """Run ``dml robustness``: train what is missing and write the page; the exit code is 2 if a run failed.

    Args:
        arguments: arguments of the command line.
    """
    options = _parser().parse_args(arguments)
    from dml.papers.leaderboard.contest_results import (  # after --help: these take seconds
        check_results,
        read_results,
        store_results,
    )
    from dml.papers.plans import Plan
    from dml.papers.robustness.conditions import (
        check_seeds,
        collect_results,
        read_clean_results,
        read_conditions,
        select_losses,
        train_missing_runs,
    )
    from dml.papers.robustness.robustness_page import write_robustness_page

    has_failed = False
    with one_line_errors():
        check_installed("matplotlib", extra="figures")
        conditions, plan = read_conditions(), Plan(options.outputs, options.seeds)
        every_clean = read_clean_results(options.docs / "leaderboard.json", conditions)
        clean = select_losses(every_clean, options.losses)
        results = read_results(options.docs / "robustness.json")
        if options.show:
            check_results(options.docs / "robustness.json", results)
        else:
            check_seeds(clean, plan)
            has_failed = train_missing_runs(conditions, clean, plan, options.jobs)
            results = store_results(options.docs / "robustness.json", collect_results(conditions, clean, plan))
        tested = {result.loss for result in results}
        shown = [result for result in every_clean if result.loss in tested]
        if results:  # none are there if the first runs failed, which have said why
            write_robustness_page(conditions, shown, results, options.docs)
            print_line(f"written: {options.docs / 'robustness.md'}")
    if has_failed:
        sys.exit(2)


def _parser() -> CommandParser:
    parser = CommandParser("robustness", DESCRIPTION, EXAMPLES)
    parser.add_argument("--losses", type=parse_names, metavar="A,B", help="losses to train (default: all)")
    add_contest_options(parser, "robustness", seeds=3)
    return parser
