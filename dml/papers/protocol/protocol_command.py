"""The command ``dml protocol``."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dml.commands.failures.error_lines import one_line_errors, print_line
from dml.commands.parsed_commands.command_parser import CommandParser, parse_names
from dml.ops.errors import InputError, suggest
from dml.ops.filesystem.paths import expand_home
from dml.ops.libraries.extras import check_installed

if TYPE_CHECKING:
    from dml.papers.protocol.cross_validation_results import ProtocolResult

HYDRA = "hydra."
"""The beginning of overrides that say how trainings are launched."""
DESCRIPTION = """\
Compare losses without bias: class-disjoint cross-validation, the same Optuna
search for each loss, and one look at the test classes, by single models and by
ensembles of the folds, with intervals and a significance matrix. Writes
protocol.md and protocol.json. Runs that are finished are not made again, so it
can be stopped and goes on. A setting can be given as --folds 4 or as folds=4."""

EXAMPLES = {
    "dml protocol losses=rll,nra,triplet dataset=emoji docs=compared": "240 trainings, and 12 that are tested",
    "dml protocol losses=rll,nra trials=8 docs=compared --set frozen=true": "the heads alone, in minutes",
    "dml protocol losses=rll,nra dataset=sop data=/data docs=sop launcher=submitit": (
        "on a Slurm cluster; jobs=16 makes 16 trainings at a time"
    ),
    "dml protocol show": "writes the page of protocol.json, and trains nothing",
}


def run_protocol(arguments: Sequence[str]) -> None:
    """Run ``dml protocol``: train what is missing and write the page; the exit code is 2 if a run failed.

    Args:
        arguments: arguments of the command line.
    """
    with one_line_errors():
        options = parse_options(arguments)
        from dml.papers.protocol.cross_validation_page import write_protocol_page  # after --help: these take seconds
        from dml.papers.protocol.cross_validation_results import read_results, store_results

        results = options.docs / "protocol.json"
        old, has_failed = read_results(results), False
        if options.show:
            result = old
        else:
            new, has_failed = _train(options, old)
            result = store_results(results, new) if new.methods else old
        if result is None and options.show:
            raise InputError(f"{results}: no such file; dml protocol without --show writes it")
        if result:
            write_protocol_page(result, options.docs)
            print_line(f"written: {options.docs / 'protocol.md'}")
    if has_failed:
        sys.exit(2)


def _train(options: argparse.Namespace, old: "ProtocolResult | None") -> "tuple[ProtocolResult, bool]":
    """Train what is missing -> the results so far, and whether a run failed.

    Args:
        options: options of the command.
        old: stored results; None if there are none.
    """
    from dml.papers.plans import Plan
    from dml.papers.protocol.cross_validation import (
        CrossValidation,
        Method,
        check_cross_validation,
        check_overrides,
    )
    from dml.papers.protocol.cross_validation_results import check_setting, collect_results
    from dml.papers.protocol.cross_validation_runs import (
        Searches,
        TrainingLauncher,
        train_searches,
        train_tested_runs,
    )
    from dml.papers.protocol.search_spaces import RATES, read_ranges
    from dml.run.config_folders import CONF

    check_installed("optuna", extra="optuna")
    _check_choice("dataset", options.dataset, CONF / "dataset")
    _check_choice("launcher", options.launcher, CONF / "launcher")
    rates = options.rates or RATES
    methods = [Method(loss, tuple(read_ranges(loss, rates))) for loss in options.losses]
    trained = tuple(override for override in options.set if not override.startswith(HYDRA))
    launched = tuple(override for override in options.set if override.startswith(HYDRA))
    setting = CrossValidation(options.dataset, options.folds, options.trials, options.seeds, rates, trained)
    check_overrides(setting, methods)
    check_cross_validation(setting, methods, options.data)
    check_setting(setting, old, options.docs / "protocol.json")
    searches = Searches(setting, Plan(options.outputs, options.seeds))
    launcher = TrainingLauncher(options.data or Path(), options.jobs, options.launcher, launched)
    has_failed = train_searches(methods, searches, launcher)
    has_failed |= train_tested_runs(methods, searches, launcher)
    return collect_results(methods, searches), has_failed


def _check_choice(name: str, choice: str, group: Path) -> None:
    known = {file.stem for file in group.glob("*.yaml")}
    if choice not in known:
        raise InputError(f"{name}={choice}: no such choice{suggest(choice, known)}")


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments, in which ``folds=4`` stands for ``--folds 4``, and ``show`` for ``--show``.

    Raises:
        InputError: if a setting doesn't exist, or no losses are given.
    """
    parser = _make_parser()
    options = parser.parse_intermixed_args(arguments)
    names = {name.removeprefix("--") for name in parser._option_string_actions if name.startswith("--")}
    for setting in options.settings:
        if setting.partition("=")[0] not in names:
            raise InputError(
                f"{setting}: no such setting{suggest(setting.partition('=')[0], names)}; --set gives one of every run"
            )
    options = parser.parse_args([f"--{setting}" for setting in options.settings], options)
    if not options.losses and not options.show:
        raise InputError("losses: which ones? For example losses=rll,multi_similarity,triplet")
    return options


def _make_parser() -> CommandParser:
    parser = CommandParser("protocol", DESCRIPTION, EXAMPLES)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="a setting: folds=4 is --folds 4")
    parser.add_argument("--losses", type=parse_names, metavar="A,B", help="losses to compare")
    parser.add_argument("--dataset", default="emoji", metavar="NAME", help="data set (default: %(default)s)")
    parser.add_number("--folds", 4, "parts of the training classes")
    parser.add_number("--trials", 20, "configurations that are tried of each loss")
    parser.add_number("--seeds", 1, "seeds of the tested models")
    parser.add_number("--jobs", 1, "trainings at a time")
    parser.add_argument(
        "--rates",
        type=_parse_rates,
        metavar="LOW,HIGH",
        help="range of the learning rate (default: 1e-4,3e-3)",
    )
    parser.add_overrides("training.frozen=true")
    parser.add_argument(
        "--launcher", default="basic", metavar="NAME", help="what begins trainings: basic, joblib, submitit or ray"
    )
    parser.add_argument(
        "--data", type=expand_home, metavar="FOLDER", help="folder that holds the folders of the data sets"
    )
    parser.add_folder("--outputs", "outputs/protocol", "folder for the runs")
    parser.add_folder("--docs", "docs", "folder of protocol.json and protocol.md")
    parser.add_argument("--show", action="store_true", help="write the page of protocol.json, and train nothing")
    return parser


def _parse_rates(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low = high = 0.0
    if not 0 < low < high < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not two rates such as 1e-4,3e-3")
    return low, high
