"""What a run prints of its metrics: their tables, those before the training, and the final ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from dml.evaluation.metric import PCA, Metric, MetricName
from dml.evaluation.names import (
    THRESHOLD_PREFIX,
    MetricDescription,
    choose_first_metric,
    choose_joint_metrics,
    choose_level_metrics,
    describe_metric,
    describe_stored_metrics,
    format_value,
    split_parts,
)
from dml.evaluation.threshold import describe_choice, find_nearest_threshold
from dml.report.provenance import SELECTIONS
from dml.runtime.text import console, in_markup, printable

NUMBER_WIDTH = 4
"""Characters of a percentage with a decimal, such as 61.8."""
NAME_WIDTH = 5
"""Fewest characters of a line of a name that is folded."""


def metric_table(
    rows: Mapping[str, Mapping[str, float]],
    *,
    levels: Sequence[str] = ("finest",),
    metrics: Sequence[str] = ("recall@1", "recall@2", "recall@4", "recall@8", "nmi"),
    title: str | None = None,
    custom: Sequence[Metric | MetricDescription] = (),
) -> Table:
    """Make a table of metrics in percent, with a line for each row and a column for each metric.

    A metric that a row lacks is a dash. One of all levels together, such as h_ap, stands beside the first level, and
    means over the levels, mean/recall@1 and so on, are the last section. A line below the table names the metrics that
    are not shown in percent. Five metrics fit 80 columns.

    Args:
        rows: {name of the row: metrics as `dml.evaluation.evaluate` returns them}.
        levels: names of level 0, 1, ...; several levels become sections of the table. An empty sequence is for metrics
            of all levels together, such as h_ap.
        metrics: names of the metrics, without their level.
        title: title above the table.
        custom: custom metrics, whose labels and units the table uses.
    """
    described = {metric: describe_metric(metric, custom) for metric in metrics}
    no_percents = [metric.label for metric in described.values() if not metric.shown_in_percent]
    table = Table(
        box=box.SIMPLE_HEAD,
        title=Text(printable(title)) if title else None,
        title_justify="left",
        caption=Text(printable(f"not in percent: {', '.join(no_percents)}")) if no_percents else None,
        caption_justify="left",
    )
    if len(levels) > 1:
        table.add_column("level", overflow="fold", min_width=NAME_WIDTH, style="bold")
    table.add_column("%", overflow="fold", min_width=NAME_WIDTH)
    for metric in metrics:
        label = printable(described[metric].label)
        # no number is cut, however narrow the console is: long names are folded instead
        table.add_column(Text(label), justify="right", no_wrap=True, min_width=max(len(label), NUMBER_WIDTH))
    sections = {f"level{i}/": level for i, level in enumerate(levels)} or {"": ""}
    if len(levels) > 1:
        sections["mean/"] = "mean"
    for prefix, level in sections.items():
        if not any(prefix + metric in values for values in rows.values() for metric in metrics):
            continue
        is_first = not table.rows
        for j, (name, values) in enumerate(rows.items()):
            head = [level if j == 0 else ""] if len(levels) > 1 else []
            shown = [values.get(prefix + metric, values.get(metric) if is_first else None) for metric in metrics]
            cells = (format_value(value, metric) for value, metric in zip(shown, described.values(), strict=True))
            table.add_row(*(Text(printable(cell)) for cell in (*head, name)), *cells)
        table.add_section()
    return table


def summary_table(
    metrics: Mapping[str, Any], levels: Sequence[str], heads: Sequence[str], custom: Sequence[Metric] = ()
) -> Table:
    """Make the table of a test's metrics: before the training, after it, and re-ranked; the report has single heads.

    The arguments are those of `print_result`.
    """
    shown = {
        name: value
        for name, value in metrics.items()
        if not MetricName.parse(name).heads and not name.startswith(f"raw/{PCA}/")
    }
    rows = split_parts(shown, "before", ", ".join(heads))
    if level_metrics := choose_level_metrics(metrics, custom):
        of_all_levels = ["h_ap"] if "h_ap" in metrics and len(levels) > 1 else []
        return metric_table(rows, levels=levels, metrics=level_metrics + of_all_levels, custom=custom)
    return metric_table(rows, levels=(), metrics=choose_joint_metrics(metrics), custom=custom)


QUICK = "a short run on a part of the data; its metrics say nothing about a method"
SEE = 'see "If training makes it worse" in docs/own_data.md'


def print_raw_metrics(metrics: Mapping[str, float], split: str) -> None:
    """Print the first metric of the backbone's features before the training."""
    if name := choose_first_metric(metrics):
        label = f"{name.removeprefix('level0/')} {metrics[name]:.1%}"
        console.print(f"[bold]before[/]   {in_markup(label)} of the {split} classes, by the network as it is")


def print_result(
    metrics: Mapping[str, Any],
    levels: Sequence[str],
    heads: Sequence[str],
    folder: Path,
    *,
    settings: Mapping[str, Any],
    custom: Sequence[Metric] = (),
) -> None:
    """Print the table of the final metrics, how the tested checkpoint was chosen, and the files in the run folder.

    ``metrics`` are the contents of metrics.json, ``settings`` the configuration as nested plain values, ``custom`` the
    user's own metrics.
    """
    console.print(summary_table(metrics, levels, heads, custom))
    for heading, text in list_remarks(metrics, settings).items():
        console.print(f"[bold red]{in_markup(heading):8}[/] {in_markup(text)}")
    _print_threshold(metrics)
    if "step" in metrics:  # a network that dml didn't train has none
        selection = str(metrics.get("selection", ""))
        chosen = f", {SELECTIONS[selection]}" if selection else ""
        if selection == "last" != settings["evaluation"]["selection"]:
            chosen += ", as no validation chose one"
        if selection == "test":
            chosen = ", [bold red]chosen on the test split itself, as the papers do[/]"
        console.print(f"[bold]tested[/]   {describe_weights(metrics)}{chosen}")
    files = [name for name in ("metrics.json", "retrieval.png", "report.html") if (folder / name).exists()]
    console.print(f"[bold]written[/]  {in_markup(folder)}: {', '.join(files)}")


def list_remarks(metrics: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return {word: sentence} of what a reader of metrics.json has to know: was it quick, or worse than untrained?"""
    remarks = {"quick": QUICK} if settings.get("quick") else {}
    network, remedy = "the trained network", "a smaller optimizer.lr or another loss"
    if metrics.get("step") == 0:
        remarks["unchanged"] = (
            "no validation was better than the one before the first step, so that best.ckpt is the network as it was; "
            f"a smaller optimizer.lr may help, {SEE}"
        )
        network, remedy = "the untrained heads", "more numbers (model.embed_dim) or more training images"
    losses: list[str] = []
    coarser: list[str] = []
    monitor = (settings.get("checkpoints") or {}).get("monitor", "level0/recall@1")
    level_names = [
        name.removeprefix("raw/") for name in metrics if name.startswith("raw/level") and name.endswith("/map@r")
    ]
    for name in dict.fromkeys(["level0/recall@1", monitor, *level_names]):
        metric = describe_metric(name, describe_stored_metrics(settings))
        before, after = (metrics.get(key) for key in (f"raw/{MetricName.parse(name).metric}", name))
        if before is None or after is None or before == after or (after > before) == metric.higher_is_better:
            continue
        old, new = (format_value(value, metric) + " %" * metric.shown_in_percent for value in (before, after))
        is_fine = name == monitor or name.startswith("level0/")
        (losses if is_fine else coarser).append(f"{name.removeprefix('level0/')} went from {old} to {new}")
    if losses:
        remarks["worse"] = (
            f"the backbone's own features find more than {network}: {', '.join(losses)}; {remedy} may help, {SEE}"
        )
    if coarser:
        remarks["coarser"] = f"find less than before the training: {', '.join(coarser)}; loss=happier trains all levels"
    return remarks


def _print_threshold(metrics: Mapping[str, Any]) -> None:
    """Print from which similarity on two images, or the nearest one, are of one class; the report has the errors."""
    values = {name.removeprefix(THRESHOLD_PREFIX): value for name, value in metrics.items()}
    nearest = find_nearest_threshold(values)
    if "wanted_fmr" in values and "similarity" in values:
        line = f"two images of one class: from a similarity of {values['similarity']:.3f} on"
    elif nearest is not None:
        line = f"the nearest image is of the query's class: from a similarity of {nearest:.3f} on"
    else:
        return
    console.print(f"[bold]same[/]     {line}, {in_markup(describe_choice(values))}")


def describe_weights(metrics: Mapping[str, Any]) -> str:
    """Name the tested weights of a trained network by their step, or as a mixture of the first and the last ones."""
    share = metrics.get("interpolation")
    mixture = "" if share in (None, 0, 1) else f"{share:.0%} of the way from the first weights to those of "
    return f"{mixture}step {metrics['step']:,}"
