"""The command ``dml ablation``."""

import sys
from collections.abc import Sequence

from dml.commands.failures.error_lines import one_line_errors, print_line
from dml.commands.parsed_commands.command_parser import CommandParser, add_contest_options, parse_names

DESCRIPTION = """\
Change one part of the default training at a time, with three seeds on emoji
and on photographs, and write ablation.md with intervals over the test classes.
Runs that are finished are not made again, so it can be stopped and goes on.
The heads alone take ten minutes on two cores, whole networks some hours."""

EXAMPLES = {
    "dml ablation --photographs /data/grocery.csv": "the heads alone, on both data sets",
    "dml ablation --kind whole": "whole networks, on the emoji",
    "dml ablation --kind whole --only begin": "the default and other first weights of the heads",
    "dml ablation --show": "writes the page from ablation.json, and trains nothing",
}


def run_ablation(arguments: Sequence[str]) -> None:
    """Run ``dml ablation``: train what is missing and write the page; the exit code is 2 if a run failed.

    Args:
        arguments: arguments of the command line.
    """
    options = _parser().parse_args(arguments)
    from dml.papers.ablation.ablation_page import write_ablation_page  # after --help: these take seconds
    from dml.papers.ablation.variants import collect_results, read_ablation, train_missing_runs
    from dml.papers.leaderboard.contest_results import check_results, read_results, store_results
    from dml.papers.plans import Plan

    has_failed = False
    with one_line_errors():
        roots, datasets = options.photographs, ["emoji", *options.photographs]
        ablation, plan = read_ablation(), Plan(options.outputs, options.seeds)
        file = options.docs / "ablation.json"
        results = read_results(file)
        if options.show:
            check_results(file, results)
        else:
            kind = ablation.kinds[options.kind]
            has_failed = train_missing_runs(ablation, kind.select(options.only), plan, roots, datasets, options.jobs)
            results = store_results(file, collect_results(ablation, kind, plan, roots, datasets))
        if results:  # none are there if the first runs failed, which have said why
            write_ablation_page(ablation, results, options.docs)
            print_line(f"written: {options.docs / 'ablation.md'}")
    if has_failed:
        sys.exit(2)


def _parser() -> CommandParser:
    parser = CommandParser("ablation", DESCRIPTION, EXAMPLES)
    parser.add_photographs()
    parser.add_argument(
        "--kind", choices=("heads", "whole"), default="heads", help="what learns in the runs (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        type=parse_names,
        default=[""],
        metavar="TEXTS",
        help="train these variants alone, by parts of their names, such as whitened,ten; the default is always one",
    )
    add_contest_options(parser, "ablation", seeds=3)
    return parser
