"""The command ``dml claims``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dml.commands.failures.error_lines import one_line_errors, print_line
from dml.commands.parsed_commands.command_parser import CommandParser
from dml.ops.filesystem.paths import expand_home
from dml.ops.libraries.extras import check_installed

DESCRIPTION = """\
Test the papers' claims: train small forms of what the papers compare, on the
embedded data and on photographs, and write claims.md with a verdict for each
claim. It takes hours, so it can be stopped and goes on: runs that are done, or
whose metrics stand in claims.json, are not made again."""

EXAMPLES = {
    "dml claims": "trains what is missing on emoji, writes docs/claims.md and claims.json",
    "dml claims --data /data": "on the photographs too, if /data has grocery/grocery.csv",
    "dml claims --only 1,2": "the same for the claims 1 and 2",
    "dml claims --quick": "an eighth of the steps, in an hour or two; writes outputs/claims-quick/",
    "dml claims --commands": "prints the commands that are next: alternatives to choose from first",
    "dml claims --show": "writes the page of claims.json and of finished runs, trains nothing",
}


OUTPUTS, QUICK_OUTPUTS = Path("outputs/claims"), Path("outputs/claims-quick")
QUICK_DIVISOR = 8


def run_claims(arguments: Sequence[str]) -> None:
    """Run ``dml claims``: test claims or print commands; the exit code is 2 if a run failed.

    Args:
        arguments: arguments of the command line.
    """
    options = _parser().parse_args(arguments)
    from dml.papers.claims.claim_results import ClaimResults  # after --help: these take seconds
    from dml.papers.claims.claim_runs import print_commands, train_missing_runs
    from dml.papers.claims.claims_on_dataset import ClaimsOnDataset, select_datasets
    from dml.papers.claims.claims_page import write_claims_page
    from dml.papers.claims.definitions import read_claims
    from dml.papers.claims.tuning import Tuning
    from dml.papers.plans import Plan

    outputs = options.outputs or (QUICK_OUTPUTS if options.quick else OUTPUTS)
    docs = options.docs or (outputs if options.quick else Path("docs"))
    has_failed = False
    with one_line_errors():
        content = read_claims(shortened=QUICK_DIVISOR if options.quick else 1)
        results = ClaimResults(docs / "claims.json")
        plan = Plan(outputs, options.seeds)
        tested = [ClaimsOnDataset(claims, Tuning(claims.arms, plan, results)) for claims in content.on_datasets]
        datasets = select_datasets(tested, options.data, options.only)
        if options.commands:
            for on_dataset in datasets:
                print_commands(on_dataset.claims, on_dataset.tuning, options.data or Path())
            return
        check_installed("matplotlib", extra="figures")
        for on_dataset in [] if options.show else datasets:
            claims, tuning = on_dataset.claims, on_dataset.tuning
            has_failed |= train_missing_runs(claims, tuning, options.data or Path(), options.jobs)
        write_claims_page(content.setting, tested, docs, "make claims-quick" if options.quick else "make claims")
        results.write()
        print_line(f"written: {docs / 'claims.md'}")
    if has_failed:
        sys.exit(2)


def _parser() -> CommandParser:
    parser = CommandParser("claims", DESCRIPTION, EXAMPLES)
    parser.add_number("--seeds", 5, "runs of each training; fewer than the default decide no claim")
    parser.add_number("--jobs", 2, "runs at a time, each with one thread")
    parser.add_argument(
        "--only", type=_parse_numbers, metavar="1,2", help="numbers of the claims to test (default: all)"
    )
    parser.add_argument(
        "--data",
        type=expand_home,
        metavar="FOLDER",
        help="folder with grocery/grocery.csv: photographs, the second data set",
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"divide all steps by {QUICK_DIVISOR}; no claim is decided by so few"
    )
    parser.add_argument(
        "--outputs",
        type=expand_home,
        metavar="FOLDER",
        help=f"folder for the runs (default: {OUTPUTS}, or {QUICK_OUTPUTS})",
    )
    parser.add_argument(
        "--docs",
        type=expand_home,
        metavar="FOLDER",
        help="folder for claims.md, its figures and claims.json (default: docs, with --quick that of the runs); "
        "results.md in it gets the summary",
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
