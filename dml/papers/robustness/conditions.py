"""The conditions under which the losses of the leaderboard train again: faults in the training images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml.ops.errors import InputError, suggest
from dml.ops.filesystem.plain_text import parse_yaml
from dml.papers.leaderboard.contest_results import ContestResult, read_result, read_results
from dml.papers.leaderboard.contest_runs import train_and_discard
from dml.papers.plans import Plan, PlannedRun
from dml.papers.tables.paper_tables import REFERENCE, Training

TESTED_KIND = "heads"
"""The kind of the leaderboard's results that are compared with."""


@dataclass(frozen=True)
class Condition:
    """Faults in the training images.

    Args:
        name: name of the condition, which is the kind of its results.
        title: title of its column.
        overrides: overrides that plant the faults.
    """

    name: str
    title: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Conditions:
    """All conditions, the experiment that they change, and a paragraph on how it is run."""

    setting: str
    dataset: str
    experiment: str
    conditions: tuple[Condition, ...]

    def find_training(self, clean: ContestResult, condition: Condition | None = None) -> Training:
        """Return the training of a loss with what was chosen for it, with the faults of a condition or without."""
        faults = condition.overrides if condition else ()
        return Training(self.experiment, (f"loss={clean.loss}", *clean.overrides, *faults))

    def list_runs(self, clean: ContestResult, condition: Condition, plan: Plan) -> list[PlannedRun]:
        """List the runs of a loss, one for each seed, with what was chosen for it without faults."""
        return plan.list_runs(self.find_training(clean, condition))


def read_conditions(path: Path = REFERENCE / "robustness.yaml") -> Conditions:
    """Read the conditions from a file; the head of robustness.yaml describes its entries."""
    content: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8"))
    conditions = tuple(
        Condition(name, entry["title"], tuple(entry["overrides"])) for name, entry in content["conditions"].items()
    )
    return Conditions(content["setting"].strip(), content["dataset"], content["experiment"], conditions)


def read_clean_results(file: Path, conditions: Conditions) -> list[ContestResult]:
    """Read the leaderboard's results without faults, one for each loss.

    Args:
        file: path of ``leaderboard.json``, which ``dml leaderboard`` writes.
        conditions: the conditions whose data set the results are of.

    Raises:
        InputError: if there is none.
    """
    results = read_results(file)
    clean = [result for result in results if (result.dataset, result.kind) == (conditions.dataset, TESTED_KIND)]
    if not clean:
        raise InputError(f"{file}: no results on {conditions.dataset}; dml leaderboard makes them")
    return clean


def select_losses(clean: Sequence[ContestResult], losses: Sequence[str] | None) -> list[ContestResult]:
    """Select the results of some losses; None selects all of them.

    Raises:
        InputError: if there is none of a loss.
    """
    by_loss = {result.loss: result for result in clean}
    for loss in losses or ():
        if loss not in by_loss:
            raise InputError(f"loss {loss}: not on the leaderboard of {clean[0].dataset}{suggest(loss, by_loss)}")
    return [by_loss[loss] for loss in losses or by_loss]


def check_seeds(clean: Iterable[ContestResult], plan: Plan) -> None:
    """Make sure, before any training, that the runs have the seeds of the results that they are compared with.

    Args:
        clean: results of the losses without faults.
        plan: plan of the runs.

    Raises:
        InputError: if a loss has other seeds on the leaderboard.
    """
    for result in clean:
        if result.seeds != list(range(plan.seeds)):
            raise InputError(
                f"--seeds {plan.seeds}: leaderboard.json has {len(result.seeds)} seeds of {result.loss}, and the page "
                f"compares runs of the same seeds; --losses {result.loss} --seeds {len(result.seeds)} fits"
            )


def train_missing_runs(conditions: Conditions, clean: Sequence[ContestResult], plan: Plan, jobs: int) -> bool:
    """Train what is missing, condition after condition -> whether a run failed.

    Args:
        conditions: faults of the training images, such as wrong labels, and the experiment that is trained.
        clean: results of the losses without faults.
        plan: plan of the runs.
        jobs: number of runs at a time.
    """
    has_failed = False
    for condition in conditions.conditions:
        runs = [run for result in clean for run in conditions.list_runs(result, condition, plan)]
        has_failed |= train_and_discard(runs, condition.title, jobs)
    return has_failed


def collect_results(conditions: Conditions, clean: Sequence[ContestResult], plan: Plan) -> list[ContestResult]:
    """Collect the results of the losses and conditions of which all runs are finished; their kind is the condition."""
    results = []
    for condition in conditions.conditions:
        for result in clean:
            runs = conditions.list_runs(result, condition, plan)
            if all(run.is_finished for run in runs):
                results.append(read_result(result.dataset, condition.name, result.loss, result.overrides, {}, runs))
    return results
