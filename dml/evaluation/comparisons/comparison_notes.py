"""What stands below a table of runs: what its numbers are of, and differences with intervals over the test classes."""

from collections.abc import Sequence

import numpy as np

from dml.evaluation.comparisons.class_sums import ClassSums, sum_by_class
from dml.evaluation.comparisons.run_comparison import ConfigurationResult, sort_results
from dml.evaluation.per_query import read_queries
from dml.evaluation.printed_metrics.metric_descriptions import describe_metric, format_value
from dml.ops.escaping import printable
from dml.ops.run_folders.run_folder import RunFolder
from dml.ops.text.text_tables import markdown_table

RESAMPLES = 2000


def describe_facts(rows: Sequence[ConfigurationResult]) -> str:
    """Return a line for each fact of `measured_facts`, with the configurations that have each value if they differ."""
    lines = []
    for fact in rows[0].facts:
        names_by_value: dict[str, list[str]] = {}
        for row in rows:
            names_by_value.setdefault(row.facts.get(fact, ""), []).append(row.escaped_name)
        if len(names_by_value) == 1:
            lines.append(f"- {fact}: {printable(*names_by_value)}\n")
        else:
            lines.append(f"- {fact}:\n")
            lines += [f"  - {printable(value)}: {'; '.join(names)}\n" for value, names in names_by_value.items()]
    return "".join(lines)


def describe_differences(rows: Sequence[ConfigurationResult], metric: str) -> str:
    """Return a Markdown table of the differences to the best configuration, with intervals over the test classes.

    The interval holds 95 % of the means of `RESAMPLES` draws of whole classes with replacement, the same classes for
    both configurations: queries of one class are easy or hard together. The metrics are means over the seeds.

    Args:
        rows: results of the configurations.
        metric: name of the metric in metrics.json.

    Returns:
        The table and a sentence; "" for one configuration, or if a run has no value of the metric for each query.
    """
    best, *others = sort_results(rows, metric)
    tested = [_read_tests(row, metric) for row in (best, *others)]
    if not others or any(test is None for test in tested):
        return ""
    (classes, best_sums), *other_tests = [test for test in tested if test is not None]
    if any((names, sums.counts) != (classes, best_sums.counts) for names, sums in other_tests):
        return f"{metric}: no differences over the test classes, whose queries aren't the same for all runs\n"
    description = describe_metric(metric, best.custom_metrics)
    lines = []
    for row, (_, sums) in zip(others, other_tests, strict=True):
        numbers = (sums.mean(metric) - best_sums.mean(metric), *sums.interval(metric, best_sums))
        difference, low, high = (format_value(number, description) for number in numbers)
        lines.append([row.escaped_name, f"{difference} [{low}, {high}]"])
    points = ", in points" if description.shown_in_percent else ""
    heading = f"{metric}, difference to {best.escaped_name}{points}"
    note = (
        f"The interval holds 95 % of {RESAMPLES:,} draws of the {len(classes):,} classes of the queries, the "
        "same for both runs.\n"
    )
    return "\n\n".join((markdown_table(["run", heading], lines, right=(1,)), note))


def _read_tests(row: ConfigurationResult, metric: str) -> tuple[list[str], ClassSums] | None:
    """Return the names of the tested classes, and the metric summed by class for each seed.

    Returns:
        None if a run has no value of the metric for each query, or the seeds were tested on different queries.
    """
    files = [RunFolder(folder).queries_file for folder in row.folders]
    if not files or not all(file.exists() for file in files):
        return None
    tested: list[tuple[list[str], list[int]]] = []
    sums_of_seeds: list[list[float]] = []
    for file in files:
        queries = read_queries(file)
        if metric not in queries.metrics:  # NMI and the like are of all queries together
            return None
        level, values = queries.level_of_classes(metric), queries.metrics[metric]
        labels = queries.labels[:, level]
        names = [queries.class_name(label, level) for label in np.unique(labels[~np.isnan(values)]).tolist()]
        counts, sums = sum_by_class(labels, {metric: values})
        tested.append((names, counts))
        sums_of_seeds.append(sums[metric])
    names, counts = tested[0]
    if any(other != tested[0] for other in tested):
        return None
    return names, ClassSums(counts, {metric: sums_of_seeds})
