"""The command ``dml leaderboard``."""

import sys
from collections.abc import Sequence

from dml.commands.failures.error_lines import one_line_errors, print_line
from dml.commands.parsed_commands.command_parser import CommandParser, add_contest_options, parse_names
from dml.ops.filesystem.paths import expand_home

DESCRIPTION = """\
Train every loss with the same small search on the validation classes, test the
chosen settings with three seeds, and write leaderboard.md with intervals over
the test classes. Runs that are finished are not made again, so it can be
stopped and goes on. The heads alone take about half an hour for each data set
on two cores, whole networks a day."""

EXAMPLES = {
    "dml leaderboard": "the heads of all losses on the emoji",
    "dml leaderboard --photographs /data/grocery.csv": "the same on photographs too",
    "dml leaderboard --kind whole --losses rll,circle": "whole networks, with what the heads chose",
    "dml leaderboard --show": "writes the page from leaderboard.json, and trains nothing",
}


def run_leaderboard(arguments: Sequence[str]) -> None:
    """Run ``dml leaderboard``: train what is missing and write the page; the exit code is 2 if a run failed.

    Args:
        arguments: arguments of the command line.
    """
    options = _parser().parse_args(arguments)
    from dml.papers.leaderboard.contest_results import (  # after --help: these take seconds
        check_results,
        collect_results,
        read_results,
        store_results,
        with_stored_choices,
    )
    from dml.papers.leaderboard.contest_runs import Search, train_missing_runs
    from dml.papers.leaderboard.contests import SEARCHED_KIND, read_leaderboard, require_known, select_contests
    from dml.papers.leaderboard.leaderboard_page import insert_summary, write_leaderboard_page
    from dml.papers.plans import Plan

    with one_line_errors():
        board = read_leaderboard(options.photographs)
        require_known("kind", options.kind, board.kinds)
        contests = select_contests(board, ["emoji", *options.photographs], options.losses)
        file = options.docs / "leaderboard.json"
        results = read_results(file)
        has_failed = False
        if options.readme:
            insert_summary(options.readme, "")  # refuses another file before the trainings
        if options.show:
            check_results(file, results)
        else:
            if options.kind != SEARCHED_KIND:
                contests = with_stored_choices(contests, results)
            search = Search(Plan(options.outputs, options.seeds))
            has_failed = train_missing_runs(contests, search, options.kind, options.jobs)
            results = store_results(file, collect_results(contests, search, options.kind))
        if results:  # none are there if the first runs failed, which have said why
            write_leaderboard_page(results, board, options.docs, options.readme)
            print_line(f"written: {options.docs / 'leaderboard.md'}")
    if has_failed:
        sys.exit(2)


def _parser() -> CommandParser:
    parser = CommandParser("leaderboard", DESCRIPTION, EXAMPLES)
    parser.add_photographs()
    parser.add_argument("--losses", type=parse_names, metavar="A,B", help="losses to train (default: all)")
    parser.add_argument(
        "--kind",
        default="heads",
        help="what learns in the tested runs: heads, or the whole network (whole; long: for 1,200 steps), which takes"
        " what the heads chose, from leaderboard.json if it is there (default: %(default)s)",
    )
    add_contest_options(parser, "leaderboard", seeds=3)
    parser.add_argument(
        "--readme", type=expand_home, metavar="FILE", help="README.md whose summary is replaced (default: none)"
    )
    return parser
