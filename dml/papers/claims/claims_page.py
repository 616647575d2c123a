"""docs/claims.md, and its summary in docs/results.md."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from dml.evaluation.intervals import Interval, mean_interval
from dml.ops.errors import InputError
from dml.ops.files import write_text
from dml.ops.text_tables import markdown_table
from dml.papers.claims.definitions import METRIC_LABELS, Arm, Claim, Claims, Overrides
from dml.papers.claims.tuning import Candidate, Tuning, select_best
from dml.papers.claims.verdicts import Outcome, Verdict, combine_verdicts, compute_outcomes, read_metric
from dml.papers.cost import count_steps
from dml.papers.experiments import compose
from dml.run.stages import list_stages

OutcomesByClaim = Mapping[int, Sequence[Outcome]]
"""{number of the claim: outcomes of its comparisons}"""

SUMMARY_MARKERS = ("<!-- claims -->", "<!-- /claims -->")
"""The lines of results.md between which the summary stands."""

FIGURES = Path("images/claims")
"""The folder of the figures, below that of the page."""

HEAD = """# The papers' claims, put to the test

`make claims` writes this page. {setting}

A comparison takes the difference of two trainings seed by seed, on the test classes. It is **confirmed** if the 95 %
interval of the differences' mean (Student's t) lies above 0, or above -1 point where a method is to keep up with
another; **reversed** if it lies below that; else **not confirmed**. A claim of several comparisons is confirmed if all
are, and reversed if all are. Nothing corrects for their number: of many comparisons without any difference, one in
forty would be confirmed by chance.

{runs}

{summary}

The differences are in percent points, ± half the 95 % interval. Where a side is compared with several, the one that
comes closest to it is shown here, all of them below.
"""

TUNING_HEAD = """## Chosen on the validation classes

Alternatives were trained with seed 0 alone, and compared on the validation classes; the test classes had no part in it.
An arm that is "as" another takes what was chosen for that.
"""


def write_claims_page(claims: Claims, tuning: Tuning, docs: Path) -> None:
    """Write claims.md and its figures into the folder ``docs``, and the summary into results.md if it is there.

    Raises:
        InputError: if results.md has no place for the summary.
    """
    from dml.papers.claims.claims_figure import draw_outcomes  # importing matplotlib is slow

    outcomes = {claim.number: compute_outcomes(claim, tuning) for claim in claims.claims}
    for number, outcomes_of_claim in outcomes.items():
        draw_outcomes(outcomes_of_claim, docs / FIGURES / f"{number}.png")
    write_text(docs / "claims.md", render_page(claims, tuning, outcomes))
    results = docs / "results.md"
    if results.exists():  # the project's docs have it; elsewhere claims.md says the same
        summary = render_summary(claims.claims, outcomes)
        write_text(results, insert_summary(results.read_text(encoding="utf-8"), summary))


def render_page(claims: Claims, tuning: Tuning, outcomes: OutcomesByClaim) -> str:
    """Render the whole of docs/claims.md."""
    summary = render_summary(claims.claims, outcomes)
    parts = [
        HEAD.format(setting=claims.setting, runs=_count_runs(claims, tuning), summary=summary),
        *(_render_claim(claim, outcomes[claim.number], tuning) for claim in claims.claims),
        TUNING_HEAD,
        _render_alternatives(tuning.order_by_parent(claims.used_arms), tuning) + "\n",
    ]
    return "\n".join(parts)


def render_summary(claims: Sequence[Claim], outcomes: OutcomesByClaim) -> str:
    """Render a table with a row for each claim: its statement, the paper's difference, ours, and the verdict."""
    rows = []
    for claim in claims:
        shown = _lowest_of_each_side(outcomes[claim.number])
        rows.append(
            [
                str(claim.number),
                f"{claim.statement} ({claim.source})",
                "<br>".join(str(outcome.comparison) for outcome in shown),
                "<br>".join(_format_printed(outcome.printed_difference) for outcome in shown),
                "<br>".join(_format_difference(outcome.interval) for outcome in shown),
                _bold(combine_verdicts([outcome.verdict for outcome in outcomes[claim.number]])),
            ]
        )
    return markdown_table(["", "claim", "compared", "paper", "ours", "verdict"], rows, right=(3, 4))


def insert_summary(page: str, summary: str) -> str:
    """Return docs/results.md with the summary between its markers.

    Raises:
        InputError: if the page lacks a marker.
    """
    begin, end = SUMMARY_MARKERS
    before, opened, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise InputError(f"docs/results.md: no {begin} and {end}, between which the table of claims belongs")
    return f"{before}{begin}\n{summary}\n{end}{after}"


def _lowest_of_each_side(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return, of the comparisons that share their better side and metric, the one whose interval reaches lowest."""

    def side(outcome: Outcome) -> tuple[str, str]:
        return outcome.comparison.better.name, outcome.comparison.metric

    order = {key: place for place, key in enumerate(dict.fromkeys(map(side, outcomes)))}
    groups = groupby(sorted(outcomes, key=lambda outcome: order[side(outcome)]), key=side)
    return [min(group, key=lambda outcome: _lower_end(outcome.interval)) for _, group in groups]


def _lower_end(interval: Interval | None) -> float:
    """Return the lower end of an interval: of a single run the number itself, without a run infinity."""
    if interval is None:
        return float("inf")
    return interval.mean - (interval.half_width if interval.runs > 1 else 0.0)


def _render_claim(claim: Claim, outcomes: Sequence[Outcome], tuning: Tuning) -> str:
    verdict = combine_verdicts([outcome.verdict for outcome in outcomes])
    metrics = list(dict.fromkeys(outcome.comparison.metric for outcome in outcomes))
    labels = [METRIC_LABELS.get(metric, metric) for metric in metrics]
    arm_header = ["arm", "`experiment=claims/`…", "steps", "chosen", *labels]
    arm_rows = [_arm_row(arm, metrics, tuning) for arm in claim.arms]
    parts = [
        f"## {claim.number}. {verdict.capitalize()}",
        f"{claim.statement} ({claim.source}; the paper's numbers are those on {claim.dataset}.)",
        f"![The differences of claim {claim.number}, seed by seed]({FIGURES / f'{claim.number}.png'})",
        markdown_table(
            ["compared", "paper", "ours", "seeds", "verdict"], map(_comparison_row, outcomes), right=(1, 2, 3)
        ),
        markdown_table(arm_header, arm_rows, right=(2, *range(4, 4 + len(metrics)))),
        *([claim.remark] if claim.remark else []),
    ]
    return "\n\n".join(parts) + "\n"


def _comparison_row(outcome: Outcome) -> list[str]:
    return [
        str(outcome.comparison),
        _format_printed(outcome.printed_difference),
        _format_difference(outcome.interval),
        str(len(outcome.differences)),
        _bold(outcome.verdict),
    ]


def _arm_row(arm: Arm, metrics: Iterable[str], tuning: Tuning) -> list[str]:
    experiment = arm.training.experiment.removeprefix("claims/")
    steps = sum(count_steps(stage.config) for stage in list_stages(compose(arm.training)))
    values_by_metric = [list(read_metric(arm, metric, tuning).values()) for metric in metrics]
    return [
        f"{arm.name}{f' ({arm.prefix})' if arm.prefix else ''}",
        _code((experiment, *arm.training.overrides)),
        str(steps),
        _describe_selection(arm, tuning),
        *(_format_mean(mean_interval(values)) if values else "" for values in values_by_metric),
    ]


def _describe_selection(arm: Arm, tuning: Tuning) -> str:
    parts = [f"as {arm.parent}"] if arm.parent else []
    if best := _find_selected(tuning.list_candidates(arm)):
        parts.append(f"{_code(best.overrides)} ({100 * best.value:.1f} on val)")
    elif arm.alternatives:
        parts.append("open")
    return ", ".join(parts)


def _find_selected(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate that tuning selects; None as long as one isn't validated, or without candidates."""
    if candidates and all(candidate.is_validated for candidate in candidates):
        return select_best(candidates)
    return None


def _render_alternatives(arms: Iterable[Arm], tuning: Tuning) -> str:
    """Render a table with a row for each alternative."""
    rows = []
    for arm in arms:
        candidates = tuning.list_candidates(arm)
        selected = _find_selected(candidates)
        for candidate in candidates:
            metric = METRIC_LABELS.get(candidate.metric, candidate.metric)
            value = f"{100 * candidate.value:.1f}" if candidate.is_validated else ""
            mark = "chosen" if candidate == selected else ""
            rows.append([arm.name, _code(candidate.overrides), metric, value, mark])
    return markdown_table(["arm", "alternative", "chosen by", "on val, %", ""], rows, right=(3,))


def _count_runs(claims: Claims, tuning: Tuning) -> str:
    """Return a sentence on how many runs are done, and which arms lack some."""
    runs_by_arm = {arm.name: tuning.list_runs(arm) for arm in claims.used_arms}
    runs_by_folder = {run.folder: run for runs in runs_by_arm.values() for run in runs or ()}
    sentence = f"{sum(run.is_finished for run in runs_by_folder.values())} runs are done"
    lacking = [name for name, runs in runs_by_arm.items() if runs is None or not all(run.is_finished for run in runs)]
    return f"{sentence}; some are missing of {', '.join(lacking)}." if lacking else f"{sentence}, and none is missing."


def _format_printed(difference: float | None) -> str:
    return "–" if difference is None else f"{difference:+.1f}"


def _format_difference(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{interval.mean:+.1f} ± {interval.half_width:.1f}" if interval.runs > 1 else f"{interval.mean:+.1f}"


def _format_mean(interval: Interval) -> str:
    return f"{interval.mean:.1f} ± {interval.half_width:.1f}" if interval.runs > 1 else f"{interval.mean:.1f}"


def _bold(verdict: Verdict) -> str:
    return f"**{verdict}**"


def _code(overrides: Overrides) -> str:
    return f"`{' '.join(overrides)}`"
