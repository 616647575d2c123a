"""The command ``dml claims``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dml.commands.command_parser import CommandParser, check_installed, positive_number
from dml.commands.error_lines import one_line_errors

DESCRIPTION = """\
Test the papers' claims on the embedded data: train small forms of what the
papers compare, in little more than an hour on two cores, and write claims.md
with a verdict for each claim. Runs that are finished are not made again."""

EXAMPLES = {
    "dml claims": "trains what is missing, writes docs/claims.md and its figures",
    "dml claims --only 1,2": "the same for the claims 1 and 2",
    "dml claims --commands": "prints the commands that are next: alternatives to choose from first",
    "dml claims --show": "writes the page of the finished runs",
}


def run_claims(arguments: Sequence[str]) -> None:
    """Run ``dml claims``: test claims or print commands; the exit code is 2 if a run failed.

    Args:
        arguments: arguments of the command line.
    """
    options = _parser().parse_args(arguments)
    from dml.papers.claims.claim_runs import print_commands, train_missing_runs  # after --help: it takes seconds
    from dml.papers.claims.claims_page import write_claims_page
    from dml.papers.claims.definitions import read_claims
    from dml.papers.claims.tuning import Tuning
    from dml.papers.plans import Plan

    with one_line_errors():
        all_claims = read_claims()
        tuning = Tuning(all_claims.arms, Plan(options.outputs, options.seeds))
        claims = all_claims.select(options.only)
        if options.commands:
            print_commands(claims, tuning)
            return
        check_installed("matplotlib", extra="figures")
        has_failed = False if options.show else train_missing_runs(claims, tuning, options.jobs)
        write_claims_page(all_claims, tuning, options.docs)
    if has_failed:
        sys.exit(2)


def _parser() -> CommandParser:
    parser = CommandParser("claims", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--seeds", type=positive_number, default=5, metavar="N", help="runs of each training (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs",
        type=positive_number,
        default=2,
        metavar="N",
        help="runs at a time, each with one thread (default: %(default)s)",
    )
    parser.add_argument(
        "--only", type=_parse_numbers, metavar="1,2", help="numbers of the claims to test (default: all)"
    )
    parser.add_argument(
        "--outputs",
        type=Path,
        default=Path("outputs/claims"),
        metavar="FOLDER",
        help="folder for the runs (default: %(default)s)",
    )
    parser.add_argument(
        "--docs",
        type=Path,
        default=Path("docs"),
        metavar="FOLDER",
        help="folder for claims.md and its figures (default: %(default)s); results.md in it gets the summary",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--commands", action="store_true", help="print the commands that are next, and run nothing")
    action.add_argument("--show", action="store_true", help="write the page of the finished runs, and run nothing")
    return parser


def _parse_numbers(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text} is no list of numbers such as 1,2")
    return [int(number) for number in numbers]
