"""The verdict on a claim: paired differences of its runs over the seeds, their intervals, and what these decide."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dml.evaluation.names import full_metric_name
from dml.papers.claims.definitions import Arm, Claim, Comparison, Side
from dml.papers.claims.tuning import Tuning
from dml.papers.tables.paper_tables import Cell, add_prefix, read_cells
from dml.report.statistics import Interval, mean_interval

FEWEST_SEEDS = 5
"""The fewest seeds that decide a comparison."""

ValueBySeed = dict[int, float]
"""{seed: percent, or percent points}"""


class Verdict(StrEnum):
    """A verdict on a claim, or on one of its comparisons."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    REVERSED = "reversed"
    OPEN = "open"
    """Too few runs are finished."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison.

    Args:
        comparison: the comparison itself.
        differences: the better side less the worse, in percent points, for each seed of which all runs are finished.
        printed_difference: the difference of the numbers that the paper prints; None where it prints none.
    """

    comparison: Comparison
    differences: ValueBySeed
    printed_difference: float | None

    @property
    def interval(self) -> Interval | None:
        """The mean difference over the seeds with its interval; None before the first seed is finished."""
        return mean_interval(list(self.differences.values())) if self.differences else None

    @property
    def verdict(self) -> Verdict:
        """The verdict on this comparison alone."""
        return decide(list(self.differences.values()), self.comparison.margin)


def compute_outcomes(claim: Claim, tuning: Tuning) -> list[Outcome]:
    """Compute the outcome of each comparison of a claim, in their order."""
    return [
        Outcome(comparison, _differences(comparison, tuning), _printed_difference(claim, comparison))
        for comparison in claim.comparisons
    ]


def decide(differences: Sequence[float], margin: float = 0.0) -> Verdict:
    """Decide a comparison by the 95 % interval of its mean difference.

    The comparison is confirmed if the interval lies above -margin, reversed if it lies below.

    Args:
        differences: (n,) differences in percent points, one for each seed.
        margin: percent points by which the better side may fall behind.
    """
    if len(differences) < FEWEST_SEEDS:
        return Verdict.OPEN
    interval = mean_interval(differences)
    if interval.mean - interval.half_width > -margin:
        return Verdict.CONFIRMED
    if interval.mean + interval.half_width < -margin:
        return Verdict.REVERSED
    return Verdict.NOT_CONFIRMED


def combine_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """Combine the verdicts on comparisons to that on their claim: open if one is, else the verdict that all share.

    A claim whose comparisons differ is not confirmed.
    """
    if Verdict.OPEN in verdicts:
        return Verdict.OPEN
    return verdicts[0] if len(set(verdicts)) == 1 else Verdict.NOT_CONFIRMED


def read_metric(arm: Arm, metric: str, tuning: Tuning) -> ValueBySeed:
    """Read an arm's metric on the test classes, in percent, for each seed whose run is finished."""
    name = add_prefix(arm.prefix, full_metric_name(metric))
    metrics_by_seed = {run.seed: tuning.results.find_metrics(run, "test") for run in tuning.list_runs(arm) or ()}
    return {seed: 100 * metrics[name] for seed, metrics in metrics_by_seed.items() if metrics}


def _differences(comparison: Comparison, tuning: Tuning) -> ValueBySeed:
    better = _read_side(comparison.better, comparison.metric, tuning)
    worse = _read_side(comparison.worse, comparison.metric, tuning)
    return {seed: better[seed] - worse[seed] for seed in sorted(better.keys() & worse.keys())}


def _read_side(side: Side, metric: str, tuning: Tuning) -> ValueBySeed:
    values_of_arms = [read_metric(arm, metric, tuning) for arm in side.arms]
    if len(values_of_arms) == 1:
        return values_of_arms[0]
    seeds = set.intersection(*(set(values) for values in values_of_arms))
    return {seed: statistics.stdev(values[seed] for values in values_of_arms) for seed in seeds}


def _printed_difference(claim: Claim, comparison: Comparison) -> float | None:
    better, worse = (_printed_value(claim, side, comparison.metric) for side in (comparison.better, comparison.worse))
    return None if better is None or worse is None else better - worse


def _printed_value(claim: Claim, side: Side, metric: str) -> float | None:
    """Return the number in percent that the paper prints for a side."""
    cell = _find_cell(claim, claim.rows.get(side.name, ""), metric)
    if cell is None or cell.value is None:
        return None
    return cell.value**0.5 if cell.statistic == "sd" else cell.value  # RLL's Table XV prints the variance as SD


def _find_cell(claim: Claim, row: str, metric: str) -> Cell | None:
    cells = (
        cell
        for cell in read_cells()
        if (cell.paper, cell.row, cell.dataset) == (claim.paper, row, claim.dataset)
        and cell.table in claim.tables
        and cell.metric.partition("/")[0] == metric
    )
    return next(cells, None)
