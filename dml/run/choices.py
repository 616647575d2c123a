"""What is chosen for the claims' arms on the validation classes, and the runs that follow from it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from dml.ops.run_folder import RunFolder
from dml.run.claims import Arm, Overrides, key
from dml.run.reproduce import Plan, Run
from dml.run.tables import of_part

TUNED_WITH = 0
"""The seed of the alternatives."""

VALIDATED = "val"
"""The folder in a run's that holds its metrics on the validation classes."""


def validation(run: Run) -> Path:
    """The folder of a run's metrics on the validation classes, which `validate` asks for."""
    return run.folder / VALIDATED


def validate(run: Run) -> list[str]:
    """The command that puts them there."""
    last = RunFolder(run.folder).last_checkpoint
    return ["evaluate", f"checkpoint={last}", "split=val", f"hydra.run.dir={validation(run)}"]


@dataclass(frozen=True)
class Candidate:
    """An alternative of an arm.

    Args:
        overrides: the alternative's.
        run: of it, with the seed that all are tuned with.
        by: the metric that chooses.
        part: of metrics.json.
    """

    overrides: Overrides
    run: Run
    by: str
    part: str

    @property
    def done(self) -> bool:
        """Whether it has been validated."""
        return RunFolder(validation(self.run)).is_finished

    @cached_property
    def value(self) -> float:
        """The metric on the validation classes, a fraction."""
        return float(RunFolder(validation(self.run)).metrics()[of_part(self.part, key(self.by))])


class Choices:
    """What is chosen of the alternatives of the arms, as far as their runs are done.

    Choosing reads the metrics on the validation classes, with one seed, and no others.

    Args:
        arms: all there are.
        plan: where the runs are.
    """

    def __init__(self, arms: Mapping[str, Arm], plan: Plan) -> None:
        self.arms = arms
        self._runs = cache(plan.runs)  # composing takes its time

    def chosen(self, arm: Arm) -> Overrides | None:
        """Overrides that belong to an arm; None as long as they aren't known."""
        inherited = self._inherited(arm)
        if inherited is None or not arm.alternatives:
            return inherited
        candidates = self.candidates(arm)
        if not all(candidate.done for candidate in candidates):
            return None
        return inherited + self.best(candidates).overrides

    def candidates(self, arm: Arm) -> list[Candidate]:
        """The alternatives of an arm; none as long as the arm that it is like isn't tuned."""
        inherited = self._inherited(arm)
        if inherited is None:
            return []
        return [
            Candidate(own, self._runs(arm.training.extended(inherited + own))[TUNED_WITH], arm.by, arm.part)
            for own in arm.alternatives
        ]

    @staticmethod
    def best(candidates: Sequence[Candidate]) -> Candidate:
        """The one that is chosen of alternatives that are done, the first of equal ones."""
        return max(candidates, key=lambda candidate: candidate.value)

    def runs(self, arm: Arm) -> list[Run] | None:
        """The runs of an arm, one a seed; None as long as it isn't tuned."""
        chosen = self.chosen(arm)
        return None if chosen is None else self._runs(arm.training.extended(chosen))

    def lineage(self, arms: Iterable[Arm]) -> list[Arm]:
        """The arms with those that they are like, each once and these first."""
        found: dict[str, Arm] = {}
        for arm in arms:
            if arm.like:
                found |= {one.name: one for one in self.lineage([self.arms[arm.like]])}
            found[arm.name] = arm
        return list(found.values())

    def _inherited(self, arm: Arm) -> Overrides | None:
        return self.chosen(self.arms[arm.like]) if arm.like else ()


def by_seed(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """The runs, each folder's once, seed after seed."""
    each = {run.folder: run for run in runs}
    seeds = sorted({run.seed for run in runs})
    return ([run for run in each.values() if run.seed == seed] for seed in seeds)
