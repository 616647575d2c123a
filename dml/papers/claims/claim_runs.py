"""The runs that test the claims: the alternatives to choose from, and then the arms with what was chosen."""

import sys
from pathlib import Path

from dml.commands.failures.error_lines import print_line
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.claims.claim_results import validation_folder
from dml.papers.claims.definitions import Claims
from dml.papers.claims.tuning import Candidate, Tuning, group_by_seed, validation_command
from dml.papers.plans import PlannedRun, format_command, list_commands, run_forks, train_runs


def train_missing_runs(claims: Claims, tuning: Tuning, data: Path, jobs: int) -> bool:
    """Train and validate the missing alternatives, then train the arms, seed after seed.

    Args:
        claims: claims to test.
        tuning: alternatives of the arms, and the chosen ones.
        data: folder that holds the folders of the data sets.
        jobs: number of runs at a time.

    Returns:
        Whether a run failed.
    """
    has_failed = False
    while open_runs := _list_runs_to_validate(claims, tuning):
        missing = [run for run in open_runs if not run.is_finished]
        print_line(
            f"choosing on the validation classes: {len(open_runs)} alternatives, {len(missing)} of them to be trained"
        )
        has_failed |= train_runs(missing, data, print_line, jobs, run_forks)
        has_failed |= run_forks([validation_command(run) for run in open_runs if run.is_finished], print_line, jobs)
        if has_failed:
            break  # the arms whose alternatives are all validated are trained nevertheless
    for candidate in _list_candidates(claims, tuning):
        if candidate.is_validated:
            candidate.run.discard_checkpoints()
    runs, untuned = _list_runs_to_train(claims, tuning)
    for runs_of_seed in group_by_seed(runs):
        missing = [run for run in runs_of_seed if tuning.results.find_metrics(run, "test") is None]
        finished = len(runs_of_seed) - len(missing)
        print_line(f"seed {runs_of_seed[0].seed}: {len(runs_of_seed)} runs, {finished} of them done")
        has_failed |= train_runs(missing, data, print_line, jobs, run_forks)
        for run in runs_of_seed:
            run.discard_checkpoints()
    if untuned:
        sys.stderr.write(f"error: not trained, as an alternative failed: {', '.join(untuned)}\n")
    return has_failed or bool(untuned)


def print_commands(claims: Claims, tuning: Tuning, data: Path) -> None:
    """Print the commands of the alternatives that are open, or of the arms' missing runs once all are chosen."""
    open_runs = _list_runs_to_validate(claims, tuning)
    runs_by_seed = [] if open_runs else group_by_seed(_list_runs_to_train(claims, tuning)[0])
    for run in [*open_runs, *(run for runs in runs_by_seed for run in runs)]:
        split = "val" if run in open_runs else "test"
        for command in list_commands([run], data) if tuning.results.find_metrics(run, split) is None else []:
            print_line(command)
        if run in open_runs and not RunFolder(validation_folder(run)).is_finished:
            print_line(format_command(validation_command(run)))


def _list_candidates(claims: Claims, tuning: Tuning) -> list[Candidate]:
    arms = tuning.order_by_parent(claims.used_arms)
    return [candidate for arm in arms for candidate in tuning.list_candidates(arm)]


def _list_runs_to_validate(claims: Claims, tuning: Tuning) -> list[PlannedRun]:
    """List the alternatives to train or to validate before anything more can be chosen, each once."""
    open_candidates = [candidate for candidate in _list_candidates(claims, tuning) if not candidate.is_validated]
    return list({candidate.run.folder: candidate.run for candidate in open_candidates}.values())


def _list_runs_to_train(claims: Claims, tuning: Tuning) -> tuple[list[PlannedRun], list[str]]:
    """Return the runs of all seeds of the arms that are tuned, and the names of the other arms."""
    all_runs, untuned = [], []
    for arm in claims.used_arms:
        runs = tuning.list_runs(arm)
        if runs is None:
            untuned.append(arm.name)
        else:
            all_runs += runs
    return all_runs, untuned
