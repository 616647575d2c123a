"""docs/leaderboard.md, and its summary in README.md."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from dml.ops.errors import InputError
from dml.ops.filesystem.files import write_text
from dml.ops.text.text_tables import markdown_table, replace_between
from dml.papers.leaderboard.contest_results import ContestResult, describe_seeds
from dml.papers.leaderboard.contests import Leaderboard, TrainingKind
from dml.papers.training_facts import describe_training
from dml.report.provenance import join_facts
from dml.report.statistics import PER_QUERY, mean_interval

MARKERS = ("<!-- leaderboard -->", "<!-- /leaderboard -->")
"""The lines of README.md between which the summary stands."""
CRITERION = "map@r"
"""The metric that orders the losses."""
SUMMARY_LOSSES = 8
"""The number of losses in the summary."""

HEAD = """# Leaderboard

`make leaderboard` writes this page.

{setting}

**recall@1** and **MAP@R** are means over the seeds, in percent. The interval in brackets holds 95 % of 2,000 draws of
the test classes (bootstrap; queries of one class are not independent): it says how much another set of classes could
change the number. **behind** is the difference to the best loss in MAP@R, with the interval of the same draws for both
(paired); where it reaches 0, the test can't tell the two apart. **sd** is the standard deviation of recall@1 between
seeds.

[leaderboard.json](leaderboard.json) holds what the search found, and the sums of every run and class: `dml leaderboard
--show` computes this page from it, without any training.
"""


def write_leaderboard_page(
    results: Sequence[ContestResult], board: Leaderboard, docs: Path, readme: Path | None
) -> None:
    """Write leaderboard.md into the folder ``docs``, and the summary into README.md.

    Args:
        results: results of the contests.
        board: leaderboard whose contests have these results.
        docs: folder of the page.
        readme: the project's README.md; None to leave it as it is.

    Raises:
        InputError: if the file can't be read, or has no place for the summary.
    """
    parts = [HEAD.format(setting=board.setting)]
    for name, kind in board.kinds.items():
        kind_results = [result for result in results if result.kind == name]
        if kind_results:
            parts.append(f"## {kind.title}\n")
        for dataset, group in groupby(kind_results, key=lambda result: result.dataset):
            parts.append(_render_dataset(dataset, list(group), board))
    write_text(docs / "leaderboard.md", "\n".join(parts))
    if readme is not None:
        write_text(readme, insert_summary(readme, render_summary(results, board.kinds)))


def _render_dataset(dataset: str, results: Sequence[ContestResult], board: Leaderboard) -> str:
    ordered = sort_results(results)
    best = ordered[0]
    rows = [
        [
            f"`{result.loss}`",
            " ".join(f"`{override}`" for override in _select_effective(result, board)) or "as configured",
            _format_metric(result, "recall@1"),
            _format_deviation(result),
            _format_metric(result, "map@r"),
            "" if result is best else format_difference(result, best, CRITERION),
            f"{100 * float(np.mean(result.values['nmi'])):.1f}",
        ]
        for result in ordered
    ]
    header = ["loss", "chosen", "recall@1", "sd", "MAP@R", "behind", "NMI"]
    table = markdown_table(header, rows, right=range(2, len(header)))
    queries = sum(best.counts)
    facts = join_facts({f"`{result.loss}`": describe_result(result, board) for result in ordered})
    tested = f"{describe_seeds(results)}, {queries:,} queries of {len(best.counts):,} classes"
    return f"### {dataset}\n\n{tested}.\n\n{table}\n\n{facts}\n"


def _select_effective(result: ContestResult, board: Leaderboard) -> list[str]:
    """Return what the search chose, as far as the tested training takes it."""
    return board.select_effective(result.dataset, result.kind, result.loss, result.overrides)


def describe_result(result: ContestResult, board: Leaderboard) -> dict[str, str]:
    """Return the facts that the runs of a result stored, or else those of their configuration."""
    return result.facts or describe_training(
        board.find_training(result.dataset, result.kind, result.loss, result.overrides)
    )


def sort_results(results: Sequence[ContestResult]) -> list[ContestResult]:
    """Sort results of one data set, the best loss first."""
    return sorted(results, key=lambda result: -float(np.mean(result.seed_means(CRITERION))))


def class_interval(result: ContestResult, metric: str, less: ContestResult | None = None) -> tuple[float, float]:
    """Compute the 95 % interval over draws of the test classes of a metric, or of the difference to another result.

    Args:
        result: result of a loss.
        metric: one of `PER_QUERY`.
        less: result of another loss on the same data set, which is subtracted; None for no difference.

    Raises:
        InputError: if the two results are of different test classes.
    """
    if less is not None and less.counts != result.counts:
        raise InputError(f"{result.loss} and {less.loss} on {result.dataset}: tested on different classes")
    return result.tested.interval(metric, None if less is None else less.tested)


def _format_metric(result: ContestResult, metric: str) -> str:
    low, high = class_interval(result, metric)
    return f"{100 * float(np.mean(result.seed_means(metric))):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _format_deviation(result: ContestResult) -> str:
    means = result.seed_means("recall@1")
    return f"{100 * mean_interval(means).deviation:.1f}" if len(means) > 1 else "–"


def format_difference(result: ContestResult, other: ContestResult, metric: str) -> str:
    """Return the difference to another result in points, with the 95 % interval over draws of the test classes."""
    difference = result.tested.mean(metric) - other.tested.mean(metric)
    low, high = class_interval(result, metric, other)
    return f"{100 * difference:+.1f} [{100 * low:.1f}, {100 * high:.1f}]".replace("-", "−")


def render_summary(results: Sequence[ContestResult], kinds: Mapping[str, TrainingKind]) -> str:
    """Render the table of README.md: the best losses of each data set, for each kind of training that has results."""
    columns = []
    for name, kind in kinds.items():
        for dataset, group in groupby((r for r in results if r.kind == name), key=lambda result: result.dataset):
            columns.append((f"{dataset}, {kind.column}", sort_results(list(group))[:SUMMARY_LOSSES]))
    header = ["", *(name for name, _ in columns)]
    rows = [
        [str(place + 1), *(_format_place(ordered, place) for _, ordered in columns)]
        for place in range(max((len(ordered) for _, ordered in columns), default=0))
    ]
    return markdown_table(header, rows)


def _format_place(ordered: Sequence[ContestResult], place: int) -> str:
    if place >= len(ordered):
        return ""
    recall, precision = (100 * float(np.mean(ordered[place].seed_means(metric))) for metric in PER_QUERY)
    return f"`{ordered[place].loss}` {recall:.1f} / {precision:.1f}"


def insert_summary(readme: Path, summary: str) -> str:
    """Return the text of README.md with the summary between its markers.

    Raises:
        InputError: if the file can't be read, or lacks a marker.
    """
    try:
        page = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--readme {readme}: can't be read: {error}") from error
    replaced = replace_between(page, MARKERS, summary)
    if replaced is None:
        begin, end = MARKERS
        raise InputError(
            f"--readme {readme}: no {begin} and {end}, between which the summary of the leaderboard belongs"
        )
    return replaced
