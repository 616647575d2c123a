"""The papers' claims: their comparisons, the verdicts on these, and the figures."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

from dml.evaluation.metric import METRICS_BY_NAME
from dml.evaluation.names import full_metric_name
from dml.report.statistics import Interval, mean_interval
from dml.run.stages import list_stages
from dml.studies.charts import add_difference_axes, new_chart
from dml.studies.experiments import compose, count_steps
from dml.studies.pages import render_page
from dml.studies.paper_tables import read_numbers
from dml.studies.results import Result, Results
from dml.studies.study import Cell, Study, as_list, list_compared_rows

FEWEST_SEEDS = 5
"""The fewest seeds that decide a comparison."""

SEED_OFFSET = 0.24
"""Distance, in rows, of the dots of the single seeds below the mean."""


class Verdict(StrEnum):
    """A verdict on a claim, or on one of its comparisons."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    REVERSED = "reversed"
    OPEN = "open"
    """Too few runs are finished."""


COLORS = {
    Verdict.CONFIRMED: "#1b6e3c",
    Verdict.NOT_CONFIRMED: "#4a5560",
    Verdict.REVERSED: "#b3261e",
    Verdict.OPEN: "#8a929a",
}


@dataclass(frozen=True)
class Comparison:
    """The claim that one side is better than another: a row, or the standard deviation over several rows.

    Args:
        better, worse: names of the two sides.
        metric: name of the compared metric: "h_ap", or "recall@1" for that of the finest level.
        margin: percent points by which the better side may fall behind: the margin of non-inferiority.
    """

    better: str
    worse: str
    metric: str
    margin: float = 0.0

    def __str__(self) -> str:
        margin = f" (within {self.margin:g})" if self.margin else ""
        return f"{self.better} – {self.worse}, {label(self.metric)}{margin}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison.

    Args:
        comparison: the comparison itself.
        differences: {seed: the better side less the worse, in percent points}.
        printed: the difference of the numbers that the paper prints; None where it prints none.
    """

    comparison: Comparison
    differences: Mapping[int, float]
    printed: float | None

    @property
    def interval(self) -> Interval | None:
        """The mean difference over the seeds with its interval; None before the first seed is finished."""
        return mean_interval(list(self.differences.values())) if self.differences else None

    @property
    def verdict(self) -> Verdict:
        """The verdict on this comparison alone."""
        return decide(list(self.differences.values()), self.comparison.margin)

    @property
    def text(self) -> str:
        """The mean difference ± half its interval."""
        if self.interval is None:
            return ""
        width = f" ± {self.interval.half_width:.1f}" if self.interval.runs > 1 else ""
        return f"{self.interval.mean:+.1f}{width}"

    @property
    def marked_text(self) -> str:
        """The text with its verdict: bold is confirmed, and what is reversed or open is named."""
        if self.verdict == Verdict.CONFIRMED:
            return f"**{self.text}**"
        return self.text if self.verdict == Verdict.NOT_CONFIRMED else f"{self.text} ({self.verdict})".strip()

    @property
    def printed_text(self) -> str:
        """The difference of the paper's numbers."""
        return "–" if self.printed is None else f"{self.printed:+.1f}"


@dataclass(frozen=True)
class Claim:
    """A claim of a paper: its entry in the study's file, and its outcomes on each data set."""

    number: str
    content: Mapping[str, Any]
    outcomes: Mapping[str, list[Outcome]]

    @property
    def metrics(self) -> list[str]:
        """The compared metrics, each once."""
        return list(dict.fromkeys(comparison.metric for comparison in list_comparisons(self.content)))


def decide(differences: Sequence[float], margin: float = 0.0) -> Verdict:
    """Decide a comparison by the 95 % interval of its mean difference, in percent points over the seeds.

    The comparison is confirmed if the interval lies above -margin, reversed if it lies below.
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


def label(metric: str) -> str:
    """Return the label of a metric on the page."""
    return METRICS_BY_NAME[metric].label if full_metric_name(metric) == metric else metric


def list_comparisons(claim: Mapping[str, Any]) -> list[Comparison]:
    """List the comparisons of a claim, one for each of its metrics and worse sides."""
    return [
        Comparison(pair["better"], worse, metric, float(pair.get("within", 0)))
        for pair in claim["comparisons"]
        for metric, worse in product(as_list(pair["metric"]), as_list(pair["worse"]))
    ]


def test_claims(study: Study, results: Results) -> list[Claim]:
    """Compute the outcomes of each claim on the data sets that have all of its rows."""
    claims = []
    for number, content in study.content["claims"].items():
        rows, outcomes = list_compared_rows(content), {}
        for dataset in study.content["datasets"]:
            if all((dataset, "", row) in study.by_key for row in rows):
                cells = {row: study.by_key[dataset, "", row] for row in rows}
                outcomes[dataset] = [_compare(content, pair, cells, results) for pair in list_comparisons(content)]
        claims.append(Claim(str(number), content, outcomes))
    return claims


def _compare(claim: Mapping[str, Any], pair: Comparison, cells: Mapping[str, Cell], results: Results) -> Outcome:
    better, worse = (_read_side(claim, side, pair.metric, cells, results) for side in (pair.better, pair.worse))
    printed = [_find_printed(claim, side, pair.metric) for side in (pair.better, pair.worse)]
    differences = {seed: better[seed] - worse[seed] for seed in sorted(better.keys() & worse.keys())}
    return Outcome(pair, differences, None if None in printed else printed[0] - printed[1])  # type: ignore[operator]


def _read_side(
    claim: Mapping[str, Any], side: str, metric: str, cells: Mapping[str, Cell], results: Results
) -> dict[int, float]:
    """Read the metric of a side on the test classes, in percent -> {seed: value}."""
    rows = claim.get("spreads", {}).get(side)
    values = [read_values(cells[row], metric, results) for row in rows or [side]]
    if rows is None:
        return values[0]
    return {
        seed: statistics.stdev(row_values[seed] for row_values in values)
        for seed in set.intersection(*map(set, values))
    }


def read_values(cell: Cell, metric: str, results: Results) -> dict[int, float]:
    """Read the metric of a cell on the test classes, in percent -> {seed: value}."""
    row, name = results.find_row(cell), cell.find_metric(full_metric_name(metric))
    return {run.seed: 100 * run.metrics[name] for run in row.runs} if row else {}


def _find_printed(claim: Mapping[str, Any], side: str, metric: str) -> float | None:
    """Return the number in percent that the paper prints for a side."""
    side_key = (claim["paper"], claim["rows"].get(side), claim["dataset"], metric)
    for number in read_numbers():
        number_key = (number.paper, number.row, number.dataset, number.metric.partition("/")[0])
        if number_key == side_key and number.table in claim["tables"] and number.value is not None:
            return number.value**0.5 if number.statistic == "sd" else number.value  # Table XV prints the variance as SD
    return None


def render_claims(study: Study, results: Results) -> str:
    """Render the page of the claims."""
    claims = test_claims(study, results)
    metrics: dict[str, dict[str, None]] = {}
    for claim in claims:
        for row in list_compared_rows(claim.content):
            metrics.setdefault(row, {}).update(dict.fromkeys(claim.metrics))
    return render_page(
        study,
        results,
        filters={
            "verdict": lambda outcomes: combine_verdicts([outcome.verdict for outcome in outcomes]),
            "label": label,
            "steps": lambda cell: sum(count_steps(stage.config) for stage in list_stages(compose(cell.training))),
            "best": _find_best,
            "metric_name": lambda cell, metric: cell.find_metric(full_metric_name(metric)),
        },
        tested_claims=claims,
        compared_metrics=metrics,
        metrics=list(dict.fromkeys(metric for row_metrics in metrics.values() for metric in row_metrics)),
        zip=zip,
        fewest=FEWEST_SEEDS,
    )


def _find_best(results: Results, cell: Cell) -> Result | None:
    tried = [run for runs in results.list_tried(cell) for run in runs]
    return max(tried, key=lambda run: run.metrics["score"], default=None)


def draw_claims(study: Study, results: Results, docs: Path) -> None:
    """Draw a figure of each claim and data set that has results: the same numbers give the same bytes."""
    for claim in test_claims(study, results):
        for dataset, outcomes in claim.outcomes.items():
            if any(outcome.differences for outcome in outcomes):
                draw_outcomes(outcomes, docs / "images" / "claims" / f"{claim.number}_{dataset}.png")


def draw_outcomes(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw a row for each comparison, the first at the top: the differences seed by seed, their mean and its interval.

    The row of an outcome without differences stays empty.
    """
    names = [str(outcome.comparison) for outcome in outcomes]
    with new_chart(path, size=(8.0, 1.0 + 0.42 * len(outcomes))) as figure:
        text = "difference on the test classes, percent points (above 0: as claimed)"
        axes = add_difference_axes(figure, names, text)
        for row, outcome in enumerate(outcomes):
            color, interval, margin = COLORS[outcome.verdict], outcome.interval, outcome.comparison.margin
            if margin:  # a dotted line marks the end of the margin, above which the differences have to lie
                axes.plot([-margin] * 2, [row - 0.4, row + 0.4], color="#20262c", linewidth=1, linestyle=":")
            if interval is None:
                continue
            differences = list(outcome.differences.values())
            heights = [row + SEED_OFFSET] * len(differences)
            axes.plot(differences, heights, "o", markersize=5, color=color, alpha=0.35, markeredgewidth=0)
            if interval.runs > 1:
                axes.errorbar(interval.mean, row, xerr=interval.half_width, color=color, capsize=4, linewidth=1.6)
            axes.plot(interval.mean, row, "D", markersize=6, color=color, markeredgecolor="white")
