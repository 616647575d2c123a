"""The runs of the leaderboard: first the rates, then the values of the main parameter, then all seeds."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from dml.commands.failures.error_lines import print_line
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.leaderboard.contests import Contest, Overrides
from dml.papers.plans import Plan, PlannedRun, run_forks, train_runs

SEARCH_SEED = 0
"""The seed of the runs that the search compares."""
CRITERION = "val/level0/map@r"
"""The metric of the history whose best value the search compares."""
NO_DATA = Path()
"""The contests name their data sets themselves."""


class Search:
    """The small search of the contests, as far as its runs are finished.

    Args:
        plan: plan of the runs, one for each seed.
    """

    def __init__(self, plan: Plan) -> None:
        self._list_runs = cache(plan.list_runs)  # composing a training is slow

    def list_candidates(self, contest: Contest) -> list[tuple[Overrides, PlannedRun]]:
        """List the overrides and runs that can be compared so far: the rates, and after them the values at the best.

        None are compared if an earlier search has chosen.
        """
        if contest.chosen is not None:
            return []
        candidates = self._plan_candidates(contest, contest.rates)
        if all(run.is_finished for _, run in candidates):
            best_rate, _ = max(candidates, key=score_candidate)
            candidates += self._plan_candidates(contest, [(*best_rate, *value) for value in contest.values])
        return candidates

    def choose_overrides(self, contest: Contest) -> Overrides | None:
        """Return the best overrides, the first of equal ones; None as long as a run of the search is missing."""
        if contest.chosen is not None:
            return contest.chosen
        candidates = self.list_candidates(contest)
        is_complete = len(candidates) == len(contest.rates) + len(contest.values)
        if not is_complete or not all(run.is_finished for _, run in candidates):
            return None
        return max(candidates, key=score_candidate)[0]

    def list_test_runs(self, contest: Contest, kind: str) -> list[PlannedRun]:
        """List the runs of all seeds with the chosen overrides; none as long as the search isn't complete."""
        chosen = self.choose_overrides(contest)
        if chosen is None:
            return []
        return self._list_runs(contest.training.extended((*chosen, *contest.kinds[kind].overrides)))

    def _plan_candidates(
        self, contest: Contest, alternatives: Iterable[Overrides]
    ) -> list[tuple[Overrides, PlannedRun]]:
        return [
            (overrides, self._list_runs(contest.training.extended(overrides))[SEARCH_SEED])
            for overrides in alternatives
        ]


def score_candidate(candidate: tuple[Overrides, PlannedRun]) -> float:
    """Return the best validation of a finished run of the search, a fraction."""
    return max(RunFolder(candidate[1].folder).values(CRITERION).values())


def train_missing_runs(contests: Sequence[Contest], search: Search, kind: str, jobs: int) -> bool:
    """Train what is missing of the searches and then of the tests -> whether a run failed.

    Args:
        contests: contests to run.
        search: search of the contests.
        kind: kind of training that is tested.
        jobs: number of runs at a time.
    """
    has_failed = False
    for half in ("rates", "values of the main parameter"):
        runs = [run for contest in contests for _, run in search.list_candidates(contest)]
        has_failed |= train_and_discard(runs, f"choosing {half}", jobs)
    return has_failed | train_and_discard(
        [run for contest in contests for run in search.list_test_runs(contest, kind)], f"testing {kind}", jobs
    )


def train_and_discard(runs: Iterable[PlannedRun], purpose: str, jobs: int) -> bool:
    """Train the runs that aren't finished, and discard the checkpoints of all that are -> whether a run failed.

    Args:
        runs: runs in the order in which they begin; a run that is listed twice is trained once.
        purpose: beginning of the line that counts them.
        jobs: number of runs at a time.
    """
    distinct = list({run.folder: run for run in runs}.values())
    missing = [run for run in distinct if not run.is_finished]
    print_line(f"{purpose}: {len(distinct)} runs, {len(missing)} of them to be trained")
    has_failed = train_runs(missing, NO_DATA, print_line, jobs, run_forks)
    for run in distinct:
        run.discard_checkpoints()
    return has_failed
