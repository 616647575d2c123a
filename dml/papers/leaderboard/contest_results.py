"""The results of the leaderboard as one small JSON file, from which every interval can be computed again."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dml.ops.errors import InputError
from dml.ops.filesystem.files import write_text
from dml.ops.filesystem.locks import replacing_alone
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.leaderboard.contest_runs import Search, score_candidate
from dml.papers.leaderboard.contests import SEARCHED_KIND, Contest
from dml.papers.plans import PlannedRun
from dml.papers.training_facts import describe_runs
from dml.report.statistics import DIGITS, ClassSums, shorten, sum_runs_by_class

PER_RUN = {"nmi": "level0/nmi"}
"""The metrics with a value for each run, and their names in metrics.json."""


@dataclass(frozen=True)
class ContestResult:
    """The result of a loss on a data set.

    Args:
        dataset: name of the data set.
        kind: name of the kind of training, a key of ``kinds`` in leaderboard.yaml.
        loss: name of the loss.
        overrides: the overrides that the search chose.
        searched: {overrides: MAP@R of the best validation, a fraction}; empty if an earlier search had chosen.
        seeds: seeds of the runs.
        counts: number of queries of each test class.
        sums: {metric: for each seed, the sum of its values over the queries of each test class}.
        values: {metric: for each seed, its value}.
        facts: size and geometry of the vectors, first weights, checkpoint, split and device that the runs stored;
            empty in results of older versions.
    """

    dataset: str
    kind: str
    loss: str
    overrides: list[str]
    searched: dict[str, float]
    seeds: list[int]
    counts: list[int]
    sums: dict[str, list[list[float]]]
    values: dict[str, list[float]]
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def tested(self) -> ClassSums:
        """The metrics of the runs, one for each seed, summed by test class."""
        return ClassSums(self.counts, self.sums)

    def seed_means(self, metric: str) -> list[float]:
        """Return the mean of a metric over all queries, for each seed."""
        return self.tested.run_means(metric)


def with_stored_choices(contests: Iterable[Contest], results: Iterable[ContestResult]) -> list[Contest]:
    """Let the contests that have a result of the searched kind take over what was chosen then."""
    chosen = {
        (result.dataset, result.loss): tuple(result.overrides) for result in results if result.kind == SEARCHED_KIND
    }
    return [replace(contest, chosen=chosen.get((contest.dataset, contest.loss))) for contest in contests]


def collect_results(contests: Iterable[Contest], search: Search, kind: str) -> list[ContestResult]:
    """Collect the results of the contests of which all tested runs of a kind are finished."""
    results = []
    for contest in contests:
        overrides = search.choose_overrides(contest)
        if overrides is None:
            continue
        searched = {
            " ".join(tried): round(score_candidate((tried, run)), DIGITS)
            for tried, run in search.list_candidates(contest)
        }
        runs = search.list_test_runs(contest, kind)
        if all(run.is_finished for run in runs):
            results.append(read_result(contest.dataset, kind, contest.loss, list(overrides), searched, runs))
    return results


def read_result(
    dataset: str, kind: str, loss: str, overrides: list[str], searched: dict[str, float], runs: Sequence[PlannedRun]
) -> ContestResult:
    """Read the result of a loss from its finished runs, one for each seed; see `ContestResult` for the rest."""
    tested = sum_runs_by_class([RunFolder(run.folder) for run in runs])
    values = {metric: shorten(run.metrics[name] for run in runs) for metric, name in PER_RUN.items()}
    seeds = [run.seed for run in runs]
    facts = describe_runs(runs)
    return ContestResult(dataset, kind, loss, overrides, searched, seeds, tested.counts, tested.sums, values, facts)


def merge_results(old: Iterable[ContestResult], new: Iterable[ContestResult]) -> list[ContestResult]:
    """Return the results in a fixed order; a new one takes the place of the old one of its loss, data set and kind.

    Raises:
        InputError: if results of one data set are of different test classes, such as those of two lists of photographs.
    """
    merged = {(result.dataset, result.kind, result.loss): result for result in (*old, *new)}
    counts: dict[str, list[int]] = {}
    for result in merged.values():
        if counts.setdefault(result.dataset, result.counts) != result.counts:
            raise InputError(
                f"{result.dataset}: the stored results are of other test classes; --docs FOLDER stores these apart"
            )
    return [merged[key] for key in sorted(merged)]


def store_results(path: Path, new: Iterable[ContestResult]) -> list[ContestResult]:
    """Merge new results into a file, and return all: another command may have written there during the training.

    Raises:
        InputError: if `merge_results` or `read_results` raises one.
    """
    with replacing_alone(path):
        results = merge_results(read_results(path), new)
        write_results(path, results)
    return results


def check_results(path: Path, results: Sequence[ContestResult]) -> None:
    """Make sure that there are results to write a page of.

    Args:
        path: file that they were read from.
        results: all results in the file; empty if there is no file.

    Raises:
        InputError: if there is none.
    """
    if not results:
        raise InputError(f"{path}: holds no results; the command without --show trains, and writes it")


def describe_seeds(results: Sequence[ContestResult]) -> str:
    """Return how many seeds results have: "3 seeds", or "1 to 3 seeds" if they differ."""
    fewest, most = (limit(len(result.seeds) for result in results) for limit in (min, max))
    return f"{most} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"


def read_results(path: Path) -> list[ContestResult]:
    """Read the results that `write_results` wrote; none if there is no file.

    Raises:
        InputError: if the file isn't one that `write_results` wrote.
    """
    if not path.exists():
        return []
    try:
        return [ContestResult(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: no results of a leaderboard ({error}); delete it, or take it from git") from error


def write_results(path: Path, results: Iterable[ContestResult]) -> None:
    """Write results as JSON, each on a line of its own; facts that a result lacks aren't written."""
    lines = []
    for result in results:
        entry = {name: value for name, value in asdict(result).items() if name != "facts" or value}
        lines.append(json.dumps(entry, separators=(",", ":")))
    write_text(path, "[\n" + ",\n".join(lines) + "\n]\n")
