"""Tests the papers' claims on the embedded data, and writes docs/claims.md.

python scripts/claims.py                what is missing, or was interrupted; then the page and its figures
python scripts/claims.py --only 1,2     the same of some claims
python scripts/claims.py --commands     the commands that are next: alternatives to choose from first
python scripts/claims.py --show         run nothing, write the page from what is done
"""

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dml.ops.run_folder import RunFolder
from dml.run.choices import Choices, by_seed, validate, validation
from dml.run.claims import Claims, read
from dml.run.claims_page import write
from dml.run.cli import one_line_errors, say
from dml.run.reproduce import Plan, Run, commands, forks, train

NOWHERE = Path()  # the data is embedded


def main() -> None:
    """Reads the command line and does what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each training")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, each with one thread")
    parser.add_argument("--only", type=_numbers, help="claims, as 1,2")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/claims"), help="for the runs")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="for the page; the README is beside it")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--commands", action="store_true", help="print the commands that are next, run nothing")
    what.add_argument("--show", action="store_true", help="run nothing, write the page")
    arguments = parser.parse_args()
    with one_line_errors():
        claims = read()
        choices = Choices(claims.arms, Plan(arguments.outputs, arguments.seeds))
        asked = claims.only(arguments.only)
        if arguments.commands:
            _commands(asked, choices)
            return
        failed = False if arguments.show else _make(asked, choices, arguments.jobs)
        write(claims, choices, arguments.docs)
    if failed:
        sys.exit(2)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _make(claims: Claims, choices: Choices, jobs: int) -> bool:
    """Makes what is missing: the alternatives, then seed after seed -> whether a run failed."""
    failed = False
    while open_runs := _to_tune(claims, choices):
        missing = [run for run in open_runs if not run.done]
        say(f"choosing on the validation classes: {len(open_runs)} alternatives, {len(missing)} of them to be trained")
        failed |= train(missing, NOWHERE, say, jobs, forks)
        failed |= forks([validate(run) for run in open_runs if run.done], say, jobs)
        if failed:
            break  # what can be chosen is trained nevertheless
    _tidy([one.run for arm in choices.lineage(claims.used) for one in choices.candidates(arm) if one.done])
    runs, unknown = _to_train(claims, choices)
    for of_seed in by_seed(runs):
        say(f"seed {of_seed[0].seed}: {len(of_seed)} runs, {sum(run.done for run in of_seed)} of them done")
        failed |= train([run for run in of_seed if not run.done], NOWHERE, say, jobs, forks)
        _tidy(of_seed)
    if unknown:
        sys.stderr.write(f"error: not trained, as an alternative failed: {', '.join(unknown)}\n")
    return failed or bool(unknown)


def _to_tune(claims: Claims, choices: Choices) -> list[Run]:
    """The alternatives that are to be trained, or validated, before anything more can be chosen."""
    candidates = [one for arm in choices.lineage(claims.used) for one in choices.candidates(arm)]
    return list({one.run.folder: one.run for one in candidates if not one.done}.values())


def _to_train(claims: Claims, choices: Choices) -> tuple[list[Run], list[str]]:
    """(the runs of all seeds, the names of arms that aren't tuned)"""
    found, unknown = [], []
    for arm in claims.used:
        runs = choices.runs(arm)
        if runs is None:
            unknown.append(arm.name)
        found += runs or []
    return found, unknown


def _tidy(runs: Sequence[Run]) -> None:
    """Deletes the checkpoints of finished runs, which are nearly all that they take up: gigabytes."""
    for run in runs:
        if run.done:
            shutil.rmtree(RunFolder(run.folder).last_checkpoint.parent, ignore_errors=True)


def _commands(claims: Claims, choices: Choices) -> None:
    tuning = _to_tune(claims, choices)
    for run in tuning or [run for of_seed in by_seed(_to_train(claims, choices)[0]) for run in of_seed]:
        for line in commands([run], NOWHERE):
            print(line)
        if run in tuning and not RunFolder(validation(run)).is_finished:
            print(shlex.join(["python", *validate(run)]))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
