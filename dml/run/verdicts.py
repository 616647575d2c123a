"""What runs say about a claim: paired differences over the seeds, their intervals, and a verdict."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dml.evaluation.intervals import Interval, mean_interval
from dml.run.choices import Choices
from dml.run.claims import Arm, Claim, Comparison, Side, key
from dml.run.reproduce import Run
from dml.run.tables import Cell, cells, of_part

FEWEST_SEEDS = 5
"""Below this nothing is decided."""

Numbers = dict[int, float]
"""{seed: percent, or percent points}"""


class Verdict(StrEnum):
    """What became of a claim, or of one of its comparisons."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    REVERSED = "reversed"
    OPEN = "open"  # too few runs are done


def of_differences(differences: Sequence[float], within: float = 0.0) -> Verdict:
    """(n,) differences, one a seed, in percent points -> the verdict of their 95 % interval.

    Confirmed if it lies above 0, or above ``-within``; reversed if it lies below that.
    """
    if len(differences) < FEWEST_SEEDS:
        return Verdict.OPEN
    found = mean_interval(differences)
    if found.mean - found.half_width > -within:
        return Verdict.CONFIRMED
    if found.mean + found.half_width < -within:
        return Verdict.REVERSED
    return Verdict.NOT_CONFIRMED


def of_comparisons(verdicts: Sequence[Verdict]) -> Verdict:
    """That of a claim: the one that all its comparisons have; not confirmed if they differ, open if one is."""
    if Verdict.OPEN in verdicts:
        return Verdict.OPEN
    return verdicts[0] if len(set(verdicts)) == 1 else Verdict.NOT_CONFIRMED


@dataclass(frozen=True)
class Outcome:
    """What came of a comparison.

    Args:
        comparison: that is meant.
        differences: the better side less the worse, in percent points, of each seed of which all runs are done.
        paper: the same of the numbers that the paper prints; None where it prints none.
    """

    comparison: Comparison
    differences: Numbers
    paper: float | None

    @property
    def interval(self) -> Interval | None:
        """The mean over the seeds; None before the first is done."""
        return mean_interval(list(self.differences.values())) if self.differences else None

    @property
    def verdict(self) -> Verdict:
        """Of this comparison alone."""
        return of_differences(list(self.differences.values()), self.comparison.within)


def outcomes(claim: Claim, choices: Choices) -> list[Outcome]:
    """One a comparison, in their order."""
    return [Outcome(one, _differences(one, choices), _printed_difference(claim, one)) for one in claim.comparisons]


def numbers(arm: Arm, metric: str, choices: Choices) -> Numbers:
    """An arm's metric on the test classes, of each seed that is done."""
    name = of_part(arm.part, key(metric))
    return {run.seed: 100 * run.metrics[name] for run in _done(arm, choices)}


def _done(arm: Arm, choices: Choices) -> list[Run]:
    return [run for run in choices.runs(arm) or () if run.done]


def _differences(comparison: Comparison, choices: Choices) -> Numbers:
    better = _values(comparison.better, comparison.metric, choices)
    worse = _values(comparison.worse, comparison.metric, choices)
    return {seed: better[seed] - worse[seed] for seed in sorted(better.keys() & worse.keys())}


def _values(side: Side, metric: str, choices: Choices) -> Numbers:
    found = [numbers(arm, metric, choices) for arm in side.arms]
    if len(found) == 1:
        return found[0]
    seeds = set.intersection(*(set(of_arm) for of_arm in found))
    return {seed: statistics.stdev(of_arm[seed] for of_arm in found) for seed in seeds}


def _printed_difference(claim: Claim, comparison: Comparison) -> float | None:
    better, worse = (_printed(claim, side, comparison.metric) for side in (comparison.better, comparison.worse))
    return None if better is None or worse is None else better - worse


def _printed(claim: Claim, side: Side, metric: str) -> float | None:
    """What the paper prints for a side, in percent."""
    cell = _cell(claim, claim.rows.get(side.name, ""), metric)
    if cell is None or cell.value is None:
        return None
    return cell.value**0.5 if cell.statistic == "sd" else cell.value  # RLL's Table XV prints the variance as SD


def _cell(claim: Claim, row: str, metric: str) -> Cell | None:
    found = (
        cell
        for cell in cells()
        if (cell.paper, cell.row, cell.dataset) == (claim.paper, row, claim.dataset)
        and cell.table in claim.tables
        and cell.metric.partition("/")[0] == metric
    )
    return next(found, None)
