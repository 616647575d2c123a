"""docs/claims.md, and its summary in docs/results.md."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from dml.ops.errors import InputError
from dml.ops.filesystem.files import write_text
from dml.ops.text.text_tables import markdown_table, replace_between
from dml.papers.claims.claims_on_dataset import ClaimsOnDataset
from dml.papers.claims.definitions import METRIC_LABELS, Arm, Claim, Overrides
from dml.papers.claims.tuning import Candidate, Tuning, select_best
from dml.papers.claims.verdicts import FEWEST_SEEDS, Outcome, Verdict, combine_verdicts, read_metric
from dml.papers.experiments import compose, count_steps
from dml.report.statistics import Interval, mean_interval
from dml.run.stages import list_stages

SUMMARY_MARKERS = ("<!-- claims -->", "<!-- /claims -->")
"""The lines of results.md between which the summary stands."""

FIGURES = Path("images/claims")
"""The folder of the figures, below that of the page."""

HEAD = """# The papers' claims, put to the test

`{command}` writes this page.
{setting}

A comparison takes the difference of two trainings seed by seed, on the test classes. It is **confirmed** if the 95 %
interval of the differences' mean (Student's t) lies above 0, or above -1 point where a method is to keep up with
another; **reversed** if it lies below that; else **not confirmed**. A claim of several comparisons is confirmed if all
are, and reversed if all are. It is **open** as long as runs are missing, or with fewer than {fewest} seeds. Nothing
corrects for their number: of many comparisons without any difference, one in forty would be confirmed by chance.

{runs}

{summary}

The differences are in percent points, ± half the 95 % interval. Where a side is compared with several, the one that
comes closest to it is shown here, all of them below.
"""

TUNING_HEAD = """## Chosen on the validation classes

Alternatives were trained with seed 0 alone, and compared on the validation classes; the test classes had no part in it.
An arm that is "as" another takes what was chosen for that.
"""


def write_claims_page(setting: str, tested: Sequence[ClaimsOnDataset], docs: Path, command: str) -> None:
    """Write claims.md and its figures into the folder ``docs``, and the summary into results.md if it is there.

    As long as no seed of any claim is finished, results.md stays as it is.

    Args:
        setting: paragraphs on how the runs were made.
        tested: the claims on each data set.
        docs: folder of the page.
        command: command that writes the page.

    Raises:
        InputError: if results.md has no place for the summary.
    """
    from dml.papers.claims.claims_figure import draw_outcomes  # importing matplotlib is slow

    for on_dataset in tested:
        for number, outcomes in on_dataset.outcomes.items():
            if _is_begun(outcomes):
                draw_outcomes(outcomes, docs / _figure(number, on_dataset))
    write_text(docs / "claims.md", render_page(setting, tested, command))
    results = docs / "results.md"
    is_begun = any(_is_begun(outcomes) for on_dataset in tested for outcomes in on_dataset.outcomes.values())
    if is_begun and results.exists():  # the project's docs have it; elsewhere claims.md says the same
        write_text(results, insert_summary(results.read_text(encoding="utf-8"), render_summary(tested)))


def render_page(setting: str, tested: Sequence[ClaimsOnDataset], command: str) -> str:
    """Render the whole of docs/claims.md."""
    claims = {claim.number: claim for on_dataset in tested for claim in on_dataset.claims.claims}
    runs = " ".join(_count_runs(on_dataset) for on_dataset in tested)
    parts = [
        HEAD.format(command=command, setting=setting, runs=runs, summary=render_summary(tested), fewest=FEWEST_SEEDS),
        *(_render_claim(claim, tested) for claim in claims.values()),
        TUNING_HEAD,
        *(_render_alternatives(on_dataset) + "\n" for on_dataset in tested),
    ]
    return "\n".join(parts)


def render_summary(tested: Sequence[ClaimsOnDataset]) -> str:
    """Render a table with a row for each claim and data set: the claim, the paper's difference, ours, the verdict."""
    rows = []
    claims = {claim.number: claim for on_dataset in tested for claim in on_dataset.claims.claims}
    for number, claim in claims.items():
        on_datasets = [on_dataset for on_dataset in tested if number in on_dataset.outcomes]
        for row, on_dataset in enumerate(on_datasets):
            outcomes = on_dataset.outcomes[number]
            shown = _lowest_of_each_side(outcomes)
            rows.append(
                [
                    "" if row else str(number),
                    "" if row else f"{claim.statement} ({claim.source})",
                    on_dataset.claims.dataset,
                    "<br>".join(str(outcome.comparison) for outcome in shown),
                    "<br>".join(_format_printed(outcome.printed_difference) for outcome in shown),
                    "<br>".join(_format_difference(outcome.interval) for outcome in shown),
                    _bold(_verdict(outcomes)),
                ]
            )
    return markdown_table(["", "claim", "on", "compared", "paper", "ours", "verdict"], rows, right=(4, 5))


def insert_summary(page: str, summary: str) -> str:
    """Return docs/results.md with the summary between its markers.

    Raises:
        InputError: if the page lacks a marker.
    """
    replaced = replace_between(page, SUMMARY_MARKERS, summary)
    if replaced is None:
        begin, end = SUMMARY_MARKERS
        raise InputError(f"docs/results.md: no {begin} and {end}, between which the table of claims belongs")
    return replaced


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


def _render_claim(claim: Claim, tested: Sequence[ClaimsOnDataset]) -> str:
    on_datasets = [on_dataset for on_dataset in tested if claim.number in on_dataset.outcomes]
    verdicts = [
        f"{_verdict(on_dataset.outcomes[claim.number])} on {on_dataset.claims.dataset}" for on_dataset in on_datasets
    ]
    parts = [
        f"## {claim.number}. {', '.join(verdicts).capitalize()}",
        f"{claim.statement} ({claim.source}; the paper's numbers are those on {claim.dataset}.)",
        *(part for on_dataset in on_datasets for part in _render_on_dataset(claim.number, on_dataset)),
        *([claim.remark] if claim.remark else []),
    ]
    return "\n\n".join(parts) + "\n"


def _render_on_dataset(number: int, tested: ClaimsOnDataset) -> list[str]:
    """Render the results of a claim on a data set: the figure, then a table of the comparisons and one of the arms."""
    claim = next(claim for claim in tested.claims.claims if claim.number == number)
    outcomes, dataset = tested.outcomes[number], tested.claims.dataset
    metrics = list(dict.fromkeys(outcome.comparison.metric for outcome in outcomes))
    labels = [METRIC_LABELS.get(metric, metric) for metric in metrics]
    header = [f"compared on {dataset}", "paper", "ours", "seeds", "verdict"]
    arm_header = ["arm", "`experiment=claims/`…", "steps", "chosen", *labels]
    arm_rows = [_arm_row(arm, metrics, tested) for arm in claim.arms]
    if not _is_begun(outcomes):
        return [f"No seed is finished on {dataset}.", markdown_table(arm_header, arm_rows, right=(2,))]
    return [
        f"![The differences of claim {number} on {dataset}, seed by seed]({_figure(number, tested)})",
        markdown_table(header, map(_comparison_row, outcomes), right=(1, 2, 3)),
        markdown_table(arm_header, arm_rows, right=(2, *range(4, 4 + len(metrics)))),
    ]


def _figure(number: int, tested: ClaimsOnDataset) -> Path:
    return FIGURES / f"{number}_{tested.claims.dataset}.png"


def _is_begun(outcomes: Sequence[Outcome]) -> bool:
    return any(outcome.differences for outcome in outcomes)


def _verdict(outcomes: Sequence[Outcome]) -> Verdict:
    return combine_verdicts([outcome.verdict for outcome in outcomes])


def _comparison_row(outcome: Outcome) -> list[str]:
    return [
        str(outcome.comparison),
        _format_printed(outcome.printed_difference),
        _format_difference(outcome.interval),
        str(len(outcome.differences)),
        _bold(outcome.verdict),
    ]


def _arm_row(arm: Arm, metrics: Iterable[str], tested: ClaimsOnDataset) -> list[str]:
    tuning, common = tested.tuning, tested.claims.overrides
    overrides = [override for override in arm.training.overrides if override not in common]
    steps = sum(count_steps(stage.config) for stage in list_stages(compose(arm.training)))
    values_by_metric = [list(read_metric(arm, metric, tuning).values()) for metric in metrics]
    return [
        f"{arm.name}{f' ({arm.prefix})' if arm.prefix else ''}",
        _code((arm.experiment, *overrides)),
        str(steps),
        _describe_selection(arm, tuning),
        *(_format_mean(mean_interval(values)) if values else "" for values in values_by_metric),
    ]


def _describe_selection(arm: Arm, tuning: Tuning) -> str:
    parts = [f"as {arm.parent}"] if arm.parent else []
    if best := _find_selected(tuning.list_candidates(arm)):
        parts.append(f"{_code(best.overrides)} ({_format_value(best)} on val)")
    elif arm.alternatives:
        parts.append("open")
    return ", ".join(parts)


def _find_selected(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate that tuning selects; None as long as one isn't validated, or without candidates."""
    if candidates and all(candidate.is_validated for candidate in candidates):
        return select_best(candidates)
    return None


def _render_alternatives(tested: ClaimsOnDataset) -> str:
    """Render a table with a row for each alternative on a data set."""
    rows = []
    for arm in tested.tuning.order_by_parent(tested.claims.used_arms):
        candidates = tested.tuning.list_candidates(arm)
        selected = _find_selected(candidates)
        for candidate in candidates:
            metric = METRIC_LABELS.get(candidate.metric, candidate.metric)
            mark = "chosen" if candidate == selected else ""
            rows.append([arm.name, _code(candidate.overrides), metric, _format_value(candidate), mark])
    header = [f"arm on {tested.claims.dataset}", "alternative", "chosen by", "on val, %", ""]
    return markdown_table(header, rows, right=(3,))


def _count_runs(tested: ClaimsOnDataset) -> str:
    """Return a sentence on how many runs on a data set are done, and which arms lack some."""
    tuning, dataset = tested.tuning, tested.claims.dataset
    runs_by_arm = {arm.name: tuning.list_runs(arm) or [] for arm in tested.claims.used_arms}
    runs_by_folder = {run.folder: run for runs in runs_by_arm.values() for run in runs}
    done = {folder for folder, run in runs_by_folder.items() if tuning.results.find_metrics(run, "test")}
    sentence = f"{len(done)} runs on {dataset} are done"
    lacking = [
        name for name, runs in runs_by_arm.items() if not runs or not done.issuperset(run.folder for run in runs)
    ]
    if not done:
        return f"No run on {dataset} is done yet."
    return f"{sentence}; some are missing of {', '.join(lacking)}." if lacking else f"{sentence}, and none is missing."


def _format_value(candidate: Candidate) -> str:
    return "" if candidate.value is None else f"{100 * candidate.value:.1f}"


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
