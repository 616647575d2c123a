"""What a run prints of its metrics: their tables, those before the training, and the final ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from dml.evaluation.metric import Metric
from dml.evaluation.names import (
    PCA,
    THRESHOLD_PREFIX,
    MetricDescription,
    MetricName,
    choose_first_metric,
    choose_joint_metrics,
    choose_level_metrics,
    describe_metric,
    describe_stored_metrics,
    format_value,
    split_parts,
)
from dml.evaluation.threshold import describe_choice, find_nearest_threshold
from dml.runtime.console import console
from dml.runtime.text import in_markup, printable

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
    """Make the table of a test's metrics: before the training, of each head, of all heads together, and re-ranked.

    The arguments are those of `print_result`.
    """
    is_shown = {name: len(heads) > 1 or not MetricName.parse(name).heads for name in metrics}
    rows = split_parts({name: metrics[name] for name in metrics if is_shown[name]}, "before", ", ".join(heads))
    if level_metrics := choose_level_metrics(metrics, custom):
        of_all_levels = ["h_ap"] if "h_ap" in metrics and len(levels) > 1 else []
        return metric_table(rows, levels=levels, metrics=level_metrics + of_all_levels, custom=custom)
    return metric_table(rows, levels=(), metrics=choose_joint_metrics(metrics), custom=custom)


QUICK = "a short run on a part of the data; its metrics say nothing about a method"
SEE = 'see "If training makes it worse" in docs/own_data.md'


def print_raw_metrics(metrics: Mapping[str, float], split: str) -> None:
    """Print the first metric of the backbone's features before the training, as they are and after a PCA."""
    if name := choose_first_metric(metrics):
        label, projected = name.removeprefix("level0/"), metrics.get(f"{PCA}/{name}")
        more = "" if projected is None else f"; {projected:.1%} as {metrics[f'{PCA}/size']:,} principal components"
        console.print(
            f"[bold]before[/]   {in_markup(label)} {metrics[name]:.1%} (the backbone's own features{in_markup(more)})"
            + (", in the test, not in a validation, whose classes are others" if split == "test" else "")
        )


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
    chosen = {
        "test": " [bold red]chosen on the test split itself, as the papers do[/]",
        "last": ", the last one",
        "val": ", the best on the validation split",
    }.get(metrics.get("selection", ""), "")
    selection = str(settings["evaluation"]["selection"])
    if metrics.get("selection") == "last" and selection != "last":
        chosen += f"; no validation chose one, though evaluation.selection={in_markup(selection)}"
    if "step" in metrics:  # a network that dml didn't train has none
        share = f", {metrics['interpolation']:.0%} of the way there" if metrics.get("interpolation") else ""
        chosen = f" of step {metrics['step']:,}{share}{chosen}"
    console.print(f"[bold]{in_markup(metrics['split'])}[/]{chosen}; {in_markup(metrics['vector'])}")
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
    """Print the thresholds, how they were chosen on the validation classes, and the results on the tested ones."""
    values = {name.removeprefix(THRESHOLD_PREFIX): value for name, value in metrics.items()}
    if "wanted_fmr" in values and "fmr" in values:
        choice = f"{describe_choice(values)} on the validation classes"
        console.print(
            f"[bold]same[/]     two images from a similarity of {values['similarity']:.3f} on, {in_markup(choice)}; "
            f"here {values['fmr']:.1%} of the pairs of two classes, and {1 - values['fnmr']:.1%} of those of one"
        )
    choice = f"{describe_choice(values, of_nearest=True)} on the validation classes"
    threshold = find_nearest_threshold(values)
    if threshold is not None and "wrong_share" in values:
        console.print(
            f"[bold]same[/]     the nearest from a similarity of {threshold:.3f} on, {in_markup(choice)}; here "
            f'{values["known_accepted"]:.1%} of the nearest are "same", {values["wrong_share"]:.1%} of these wrongly'
        )
    elif "wanted_wrong_share" in values and threshold is None:
        console.print(f"[bold]same[/]     no threshold: there is no similarity {in_markup(choice)}")
