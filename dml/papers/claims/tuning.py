"""The overrides that tuning selects for each arm on the validation classes, and the arms' runs with them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from dml.evaluation.names import full_metric_name
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.claims.claim_results import ClaimResults, validation_folder
from dml.papers.claims.definitions import Arm, Overrides
from dml.papers.plans import Plan, PlannedRun
from dml.papers.tables.paper_tables import add_prefix

TUNING_SEED = 0
"""The seed of the runs that tuning compares."""


class Tuning:
    """The overrides that are selected from each arm's alternatives, as far as the runs are finished.

    The selection reads the metrics on the validation classes with one seed, and nothing else.

    Args:
        arms: all arms by name.
        plan: plan of the arms' runs.
        results: metrics of the runs.
    """

    def __init__(self, arms: Mapping[str, Arm], plan: Plan, results: ClaimResults) -> None:
        self.arms = arms
        self.results = results
        self._list_runs = cache(plan.list_runs)  # composing a training is slow

    def selected_overrides(self, arm: Arm) -> Overrides | None:
        """Return the overrides that belong to an arm; None as long as the alternatives aren't validated."""
        inherited = self._inherited_overrides(arm)
        if inherited is None or not arm.alternatives:
            return inherited
        candidates = self.list_candidates(arm)
        if not all(candidate.is_validated for candidate in candidates):
            return None
        return inherited + select_best(candidates).overrides

    def list_candidates(self, arm: Arm) -> list["Candidate"]:
        """List the alternatives of an arm; none as long as the parent arm isn't tuned."""
        inherited = self._inherited_overrides(arm)
        if inherited is None:
            return []
        candidates = []
        for overrides in arm.alternatives:
            run = self._list_runs(arm.training.extended(inherited + overrides))[TUNING_SEED]
            metrics = self.results.find_metrics(run, "val")
            name = add_prefix(arm.prefix, full_metric_name(arm.tuning_metric))
            value = metrics[name] if metrics else None
            candidates.append(Candidate(overrides, run, arm.tuning_metric, value))
        return candidates

    def list_runs(self, arm: Arm) -> list[PlannedRun] | None:
        """List the runs of an arm, one for each seed; None as long as the arm isn't tuned."""
        overrides = self.selected_overrides(arm)
        return None if overrides is None else self._list_runs(arm.training.extended(overrides))

    def order_by_parent(self, arms: Iterable[Arm]) -> list[Arm]:
        """Return the arms and their parents, each once, a parent before its children."""
        ordered: dict[str, Arm] = {}
        for arm in arms:
            if arm.parent:
                ordered |= {ancestor.name: ancestor for ancestor in self.order_by_parent([self.arms[arm.parent]])}
            ordered[arm.name] = arm
        return list(ordered.values())

    def _inherited_overrides(self, arm: Arm) -> Overrides | None:
        return self.selected_overrides(self.arms[arm.parent]) if arm.parent else ()


@dataclass(frozen=True)
class Candidate:
    """One of the alternatives that tuning selects from.

    Args:
        overrides: overrides of the alternative.
        run: run of the alternative with `TUNING_SEED`.
        metric: the metric that tuning maximizes, such as "map@r".
        value: the metric on the validation classes, a fraction; None as long as it isn't known.
    """

    overrides: Overrides
    run: PlannedRun
    metric: str
    value: float | None

    @property
    def is_validated(self) -> bool:
        """Whether the metric on the validation classes is there."""
        return self.value is not None


def select_best(candidates: Sequence[Candidate]) -> Candidate:
    """Select the validated candidate with the largest metric, the first of equal ones."""
    return max(candidates, key=lambda candidate: -1.0 if candidate.value is None else candidate.value)


def validation_command(run: PlannedRun) -> list[str]:
    """Return the command that writes a run's metrics on the validation classes."""
    checkpoint = RunFolder(run.folder).last_checkpoint
    return ["evaluate", f"checkpoint={checkpoint}", "split=val", f"hydra.run.dir={validation_folder(run)}"]


def group_by_seed(runs: Sequence[PlannedRun]) -> Iterator[list[PlannedRun]]:
    """Yield the runs of each seed, the smallest seed first; a run that is listed twice comes once."""
    distinct_runs = {run.folder: run for run in runs}
    for seed in sorted({run.seed for run in runs}):
        yield [run for run in distinct_runs.values() if run.seed == seed]
